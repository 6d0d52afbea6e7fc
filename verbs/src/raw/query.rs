use std::fmt;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::uapi::abi::AbiField;
use super::uapi::method::{
    Attr, AttributeKind, Call, Constant, Flags, Handle, In, Kind, Method, Object, Out, OutSlice, OutStruct,
};
use super::uapi::rules::MethodRules;
use super::{RawContext, display_call};

/// Error of a [`Query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The table of methods does not declare the method as a query for this driver
    /// ([`MethodRules::is_query`]). It was not executed: use [`RawContext::execute`].
    #[error("{method} is not a query of this driver: use `RawContext::execute`")]
    NotAQuery {
        /// The method.
        method: &'static str,
    },
    /// The table declares no such attribute for the method, or one of another kind. The call was
    /// not executed.
    #[error("{method} has no attribute {id:#x} of this kind")]
    Attribute {
        /// The method.
        method: &'static str,
        /// The id of the attribute.
        id: u16,
    },
    /// The kernel's error.
    #[error(transparent)]
    Kernel(#[from] Errno),
}

/// A call of a method that only queries: the safe part of the raw level.
///
/// The table of methods ([`uapi::rules`](super::uapi::rules)) decides at run time whether the
/// method is a query, and whether each attribute has the kind that it is added as. Other calls fail
/// without reaching the kernel. So safe code can't make the kernel write to an address of its
/// choice, nor change an object.
///
/// ```
/// use bareverbs::raw::uapi::uverbs::types::GidEntry;
/// use bareverbs::raw::uapi::uverbs::QueryGidEntry;
///
/// # let context = bareverbs_test_support::example::context()?;
/// let mut entry = GidEntry::zeroed();
/// context
///     .raw()
///     .query::<QueryGidEntry>()
///     .constant(QueryGidEntry::PORT, 1)
///     .constant(QueryGidEntry::GID_INDEX, 0)
///     .flags(QueryGidEntry::FLAGS, 0)
///     .output_struct(QueryGidEntry::RESP_ENTRY, &mut entry)
///     .execute()?;
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// Attributes of other methods don't compile:
///
/// ```compile_fail,E0308
/// # use bareverbs::raw::uapi::uverbs::{QueryMr, QueryPort};
/// # fn example(context: &bareverbs::Context) {
/// context.raw().query::<QueryMr>().constant(QueryPort::PORT_NUM, 1);
/// # }
/// ```
#[must_use = "`execute` executes the query"]
pub struct Query<'a, M> {
    context: RawContext,
    method: Option<&'static MethodRules>,
    call: Call<'a, M>,
    mismatch: Option<u16>,
}

impl<'a, M: Method> Query<'a, M> {
    pub(super) fn new(context: RawContext) -> Self {
        let rules = context.rules();
        let method = rules.method(M::INFO.object, M::INFO.id).filter(|method| method.is_query);
        let call = context.call();
        Self { context, method, call, mismatch: None }
    }

    /// Notes a mismatch unless the table has the attribute, as an output or not.
    fn check<K: Kind>(&mut self, attr: Attr<M, K>, output: bool) {
        let declared = self.method.is_some_and(|method| {
            let info = self.context.rules().attribute(method, attr.id());
            info.is_some_and(|info| matches!(info.kind, AttributeKind::Output { .. }) == output)
        });
        if !declared {
            self.mismatch = self.mismatch.or(Some(attr.id()));
        }
    }

    /// Allows the kernel to ignore the last added attribute if it does not know it.
    pub fn optional(mut self) -> Self {
        self.call.optional();
        self
    }

    /// Adds the handle of an object.
    pub fn handle<O: Object>(mut self, attr: Attr<M, Handle<O>>, handle: u32) -> Self {
        self.check(attr, false);
        self.call.handle(attr, handle);
        self
    }

    /// Adds a number or an enumeration value.
    pub fn constant<T: AbiField + Into<u64>>(mut self, attr: Attr<M, Constant<T>>, value: T) -> Self {
        self.check(attr, false);
        self.call.constant(attr, value);
        self
    }

    /// Adds a flag word.
    pub fn flags<T: AbiField + Into<u64>>(mut self, attr: Attr<M, Flags<T>>, value: T) -> Self {
        self.check(attr, false);
        self.call.flags(attr, value);
        self
    }

    /// Adds a value as input.
    pub fn input<T>(mut self, attr: Attr<M, In<T>>, value: &'a T) -> Self
    where
        T: AbiField + IntoBytes + Immutable,
    {
        self.check(attr, false);
        self.call.input(attr, value);
        self
    }

    /// Adds a value as output.
    pub fn output<T>(mut self, attr: Attr<M, Out<T>>, value: &'a mut T) -> Self
    where
        T: AbiField + FromBytes + IntoBytes,
    {
        self.check(attr, true);
        self.call.output(attr, value);
        self
    }

    /// Adds an extensible struct as output.
    pub fn output_struct<T, const MIN: usize>(
        mut self,
        attr: Attr<M, OutStruct<T, MIN>>,
        value: &'a mut T,
    ) -> Self
    where
        T: AbiField + FromBytes + IntoBytes,
    {
        self.check(attr, true);
        self.call.output_struct(attr, value);
        self
    }

    /// Adds an array as output.
    pub fn output_slice<T, const MIN: usize>(
        mut self,
        attr: Attr<M, OutSlice<T, MIN>>,
        values: &'a mut [T],
    ) -> Self
    where
        T: AbiField + FromBytes + IntoBytes,
    {
        self.check(attr, true);
        self.call.output_slice(attr, values);
        self
    }

    /// Executes the query. The outputs are valid if it succeeds.
    ///
    /// # Errors
    /// [`QueryError::Kernel`]; the other variants for a method that is not a query of this driver,
    /// and for attributes that it does not have.
    pub fn execute(mut self) -> Result<(), QueryError> {
        let method = M::INFO.rust;
        if self.method.is_none() {
            return Err(QueryError::NotAQuery { method });
        }
        if let Some(id) = self.mismatch {
            return Err(QueryError::Attribute { method, id });
        }
        // SAFETY: the table declares the method as a query: it uses objects without changing them,
        // and gets no address except those of its outputs. `check` compared the attributes with the
        // table, so every output is memory that the call borrows exclusively. The call's bytes were
        // written by its own methods only.
        Ok(unsafe { self.context.execute(&mut self.call) }?)
    }
}

impl<M: Method> fmt::Debug for Query<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Query({})", display_call(self.call.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DriverId;
    use crate::raw::uapi::method::MethodInfo;
    use crate::raw::uapi::mlx5::{DevxObjQuery, PdQuery};
    use crate::raw::uapi::uverbs::{PdDestroy, QueryMr, RegMr};
    use crate::testing::Plain;

    fn context(driver: DriverId) -> RawContext {
        Plain::default().domain_of(driver).context().raw()
    }

    #[test]
    fn only_methods_that_the_table_declares_as_queries_reach_the_kernel() {
        let raw = context(DriverId::MLX5);
        let refused = |method| Err(QueryError::NotAQuery { method });
        assert_eq!(raw.query::<RegMr>().execute(), refused("RegMr"));
        assert_eq!(raw.query::<PdDestroy>().execute(), refused("PdDestroy"));
        assert_eq!(raw.query::<DevxObjQuery>().execute(), refused("DevxObjQuery"));
        // `/dev/null` answers ENOTTY.
        assert_eq!(raw.query::<PdQuery>().execute(), Err(QueryError::Kernel(Errno::NOTTY)));
        // The core's driver has no such method.
        assert_eq!(context(DriverId::RXE).query::<PdQuery>().execute(), refused("PdQuery"));
    }

    #[test]
    fn attributes_of_another_kind_than_declared_do_not_reach_the_kernel() {
        let raw = context(DriverId::RXE);
        let address = 0x1000_u64;
        let id = QueryMr::RESP_LKEY.id();
        let refused = Err(QueryError::Attribute { method: "QueryMr", id });
        // An input whose 8 bytes the kernel would take as the address of an output.
        let forged: Attr<QueryMr, In<u64>> = Attr::new(id);
        assert_eq!(raw.query::<QueryMr>().input(forged, &address).execute(), refused);
        let forged: Attr<QueryMr, Constant<u64>> = Attr::new(id);
        assert_eq!(raw.query::<QueryMr>().constant(forged, address).execute(), refused);
        let forged: Attr<QueryMr, Handle<crate::raw::uapi::uverbs::object::Mr>> = Attr::new(id);
        assert_eq!(raw.query::<QueryMr>().handle(forged, 1).execute(), refused);
        let unknown: Attr<QueryMr, Constant<u64>> = Attr::new(0x1000);
        let refused = Err(QueryError::Attribute { method: "QueryMr", id: 0x1000 });
        assert_eq!(raw.query::<QueryMr>().constant(unknown, 1).execute(), refused);
    }

    #[test]
    fn forged_methods_are_not_queries() {
        /// A method that claims the ids of another one and no attributes that change anything.
        struct Forged;
        impl Method for Forged {
            type Object = crate::raw::uapi::uverbs::object::Mr;
            const INFO: MethodInfo = MethodInfo { attributes: QueryMr::INFO.attributes, ..RegMr::INFO };
        }
        let refused = context(DriverId::RXE).query::<Forged>().execute();
        assert!(matches!(refused, Err(QueryError::NotAQuery { .. })), "{refused:?}");
    }
}

//! The structs of `infiniband/verbs.h` that programs and this library share, under their C names.
//!
//! The inline functions of the header read them, so their layout is part of the ABI. The tests
//! compare each size, alignment and offset with the header, by a C program.
//!
//! C reads and writes some fields while this library has shared references to the struct. Those are
//! atomics or cells. A pointer to a function is a [`Function`].

pub(crate) mod comp_cntr;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod flow;
pub(crate) mod gid;
pub(crate) mod memory;
pub(crate) mod mlx5;
#[cfg(test)]
mod oracle;
pub(crate) mod path;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod values;
pub(crate) mod work;
pub(crate) mod wq;

use std::ptr;

/// Declares structs and unions of C. A type without a name in C gives an expression for it. A field
/// with another name in C gives that name, or none if it stands for several fields.
macro_rules! c_types {
    ($( $(#[$meta:meta])* $kind:ident $name:ident $(in $c:literal)? { $(
        $(#[$field_meta:meta])* $field:ident $(as $alias:literal)?: $type:ty,
    )* } )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            pub(crate) $kind $name { $( $(#[$field_meta])* pub(crate) $field: $type, )* }
        )*

        /// What the tests compare with the header.
        #[cfg(test)]
        pub(super) const TYPES: &[super::oracle::Type] = &[ $(
            super::oracle::Type {
                c: super::c_name!(concat!(stringify!($kind), " ", stringify!($name)) $(, $c)?),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[ $(
                    super::oracle::Field {
                        c: super::c_name!(stringify!($field) $(, $alias)?),
                        offset: std::mem::offset_of!($name, $field),
                        size: size_of::<$type>(),
                    },
                )* ],
            },
        )* ];
    };
}

/// The last one of one or two names.
#[cfg(test)]
macro_rules! c_name {
    ($name:expr) => {
        $name
    };
    ($name:expr, $other:expr) => {
        $other
    };
}

#[cfg(test)]
use c_name;
use c_types;

/// A pointer to a function that C calls. It is null if the object has no such function.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Function(*const ());

impl Function {
    pub(crate) const NULL: Self = Self(ptr::null());

    /// The address of a function item: `Function::new(ibv_query_device as *const ())`.
    pub(crate) const fn new(address: *const ()) -> Self {
        Self(address)
    }

    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The function, as one of this type.
    ///
    /// # Safety
    ///
    /// It is not null, and `F` is the type of a pointer to such a function.
    pub(crate) const unsafe fn cast<F: Copy>(self) -> F {
        const { assert!(size_of::<F>() == size_of::<*const ()>()) };
        // SAFETY: by the contract.
        unsafe { std::mem::transmute_copy(&self.0) }
    }
}

// SAFETY: it is the address of code, or null.
unsafe impl Send for Function {}
// SAFETY: as for `Send`.
unsafe impl Sync for Function {}

/// The mutex and the condition variable of an object that counts its acknowledged events. Programs
/// don't use them, and neither does this library, which has its own behind the struct.
pub(crate) type Unused<T> = std::mem::MaybeUninit<T>;

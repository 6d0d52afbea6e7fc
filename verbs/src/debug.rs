//! `Debug` of handles.

mod handles;

/// Implements `Debug` by the values of some methods, so that providers and buffers need not implement it.
macro_rules! debug {
    ($($this:ident: $name:literal [$($generics:tt)*] $ty:ty { $($field:ident = $value:expr),* })*) => {$(
        impl<$($generics)*> std::fmt::Debug for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                let _ = $this;
                f.debug_struct($name)$(.field(stringify!($field), &$value))*.finish_non_exhaustive()
            }
        }
    )*};
}
pub(crate) use debug;

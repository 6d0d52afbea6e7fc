//! The attribute of kernel tests. `bareverbs_test_support` exports it.

use proc_macro::TokenStream;
use quote::quote;
use syn::{ItemFn, Path, parse_macro_input};

/// Makes a function a kernel test of its binary.
///
/// It takes no parameters, and returns `()` or an `Outcome`. The argument of the attribute is a
/// function that returns a `Requirement`. If that is an error, the test is skipped with this reason.
#[proc_macro_attribute]
pub fn kernel_test(condition: TokenStream, function: TokenStream) -> TokenStream {
    let function = parse_macro_input!(function as ItemFn);
    let name = &function.sig.ident;
    let condition = if condition.is_empty() {
        quote!()
    } else {
        let condition = parse_macro_input!(condition as Path);
        quote! {
            if let ::core::result::Result::Err(lacking) = #condition() {
                return ::bareverbs_test_support::skip(lacking);
            }
        }
    };
    quote! {
        #function

        ::bareverbs_test_support::submit! {
            ::bareverbs_test_support::Test::new(stringify!(#name), (file!(), line!()), || {
                #condition
                ::bareverbs_test_support::Verdict::outcome(#name())
            })
        }
    }
    .into()
}

//! The attribute of kernel tests. `bareverbs_test_support` exports it.

use proc_macro::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{ItemFn, Path, Token, parse_macro_input};

/// Makes a function a kernel test of its binary.
///
/// It takes no parameters, and returns `()` or an `Outcome`. The arguments of the attribute are
/// functions that return a `Requirement`. If one is an error, the test is skipped with this reason.
#[proc_macro_attribute]
pub fn kernel_test(conditions: TokenStream, function: TokenStream) -> TokenStream {
    let function = parse_macro_input!(function as ItemFn);
    let name = &function.sig.ident;
    let conditions = parse_macro_input!(conditions with Punctuated::<Path, Token![,]>::parse_terminated);
    let conditions = conditions.iter();
    quote! {
        #function

        ::bareverbs_test_support::submit! {
            ::bareverbs_test_support::Test::new(stringify!(#name), (file!(), line!()), || {
                #(
                    if let ::core::result::Result::Err(lacking) = #conditions() {
                        return ::bareverbs_test_support::skip(lacking);
                    }
                )*
                ::bareverbs_test_support::Verdict::outcome(#name())
            })
        }
    }
    .into()
}

//! `#[policy]`: turns an `impl` block and a `.proto` into a module with typed views.
//!
//! ```text
//!   #[policy(..)] impl Acl { #[request("hotel.Reservation/Reserve", reads(customer_name))] fn .. }
//!        |                        |
//!     spec.rs: parsed input       +--> resolve.rs: each field in the schema; keys.rs: metadata
//!        |                                 |
//!        +---------- expand.rs: view types, manifest, dispatch ----> tollgate_policy::export!
//! ```
//!
//! Each entry of the manifest is written once, beside the code that needs it, and checked against
//! the schema while the policy compiles: a wrong name is an error at that name. Lists of the
//! configuration are checked by the daemon, against the schemas that it meets. Absent on purpose:
//! code that runs in the policy, except getters, setters and one `match`.

#![forbid(unsafe_code)]

mod expand;
mod keys;
mod resolve;
mod spec;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Makes a policy from an `impl` block. `guest-sdk/README.md` is the tutorial; in short:
///
/// ```text
/// #[policy(
///     name = "acl",                    // required; the rest is optional
///     version = "1.0",
///     proto = "hotel.proto",           // beside Cargo.toml; needed for `reads` and `changes`
///     includes("proto"),               // where the proto's imports are; its own directory by default
///     counters(denied), gauges(depth), histograms(length),   // become the constants DENIED, DEPTH, LENGTH
///     capabilities(state, clock),      // host functions beyond log and metrics; delay, priority, route for such verdicts
///     tick_ms = 1000,                  // with `fn tick`
///     state_version = 2,               // with `fn save` and `fn restore`
///     stateless_replies = true,        // evaluating replies changes nothing that `save` hands over
/// )]
/// impl Acl {
///     fn configure(config: &[u8]) -> Result<Acl, String> { .. }   // without it: Default, and no configuration
///
///     #[request("hotel.Reservation/Reserve", reads(customer_name, stay.in_date), changes(coupon))]
///     fn reserve(&mut self, request: &mut Reserve<'_>) -> Verdict<'_> { .. }    // makes the type `Reserve`
///
///     #[request("hotel.Reservation/Cancel", metadata("authorization"), metadata_changes("x-user"))]   // or (*): as configured
///     fn cancel(&mut self, request: &mut Cancel<'_>) -> Verdict<'_> { .. }      // .metadata_authorization(), .set_metadata_x_user(..)
///
///     #[request("*", reads(config(keys: string, int)), changes(config(remove)))]  // fields that the configuration's lists name
///     fn any(&mut self, call: &mut Any<'_>) -> Verdict<'_> { .. }               // .keys(0), .keys_all(), .clear_remove(0)
///     fn lists(&self) -> Lists { .. }                                           // the lengths of those lists
///
///     #[reply("hotel.Reservation/*")]
///     fn others(&mut self, call: &Call<'_>) -> Verdict<'_> { .. }               // `Call`: nothing is read
/// }
/// ```
#[proc_macro_attribute]
pub fn policy(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let directory = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    expand::policy(arguments.into(), item.into(), directory.as_ref())
        .unwrap_or_else(|error| error.into_compile_error())
        .into()
}

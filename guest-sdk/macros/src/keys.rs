//! The metadata keys of a hook: parsing, checks, getters and setters.
//!
//! No schema lists them, so the only checks are the host's. `*` stands for the keys that the
//! policy's configuration lists: those have numbers instead of names.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Ident, LitStr, Result, Token, parenthesized};

/// The maximum number of keys in one list.
const KEYS_MAX: usize = 16;
/// The maximum length of a key in bytes.
const KEY_BYTES_MAX: usize = 128;
/// What a policy may be shown of who calls, in lists of keys that it reads.
const ATTRIBUTES: [&str; 6] = [":application", ":gid", ":pid", ":side", ":tenant", ":uid"];

/// A list of keys, or all keys that the configuration lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    Listed(Vec<String>),
    Configured,
}

impl Default for Keys {
    fn default() -> Keys {
        Keys::Listed(Vec::new())
    }
}

impl Parse for Keys {
    /// `("authorization", "x-user")`, or `(*)`.
    fn parse(input: ParseStream<'_>) -> Result<Keys> {
        let content;
        parenthesized!(content in input);
        if content.parse::<Option<Token![*]>>()?.is_some() {
            return match content.is_empty() {
                true => Ok(Keys::Configured),
                false => Err(content.error("`*` must be the only entry")),
            };
        }
        let literals = Punctuated::<LitStr, Token![,]>::parse_terminated(&content)?;
        let mut keys: Vec<String> = Vec::new();
        for literal in literals {
            let key = literal.value();
            check(&key, &keys).map_err(|problem| Error::new(literal.span(), problem))?;
            keys.push(key);
        }
        Ok(Keys::Listed(keys))
    }
}

/// Rejects a key that the host would reject.
fn check(key: &str, before: &[String]) -> std::result::Result<(), String> {
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    if key.starts_with(':') {
        if !ATTRIBUTES.contains(&key) {
            let all = ATTRIBUTES.join(" ");
            return Err(format!(
                "{key:?} is no attribute of a caller; there are {all}"
            ));
        }
    } else if !(1..=KEY_BYTES_MAX).contains(&key.len()) || !key.bytes().all(allowed) {
        return Err(format!(
            "{key:?} is not a metadata key; a key is 1 to {KEY_BYTES_MAX} of a-z 0-9 - _ ."
        ));
    }
    if ["grpc-", "tollgate-"]
        .iter()
        .any(|own| key.starts_with(own))
    {
        return Err(format!(
            "{key:?} is reserved for the daemon, like all keys that begin with grpc- or tollgate-"
        ));
    }
    if before.iter().any(|known| known == key) {
        return Err(format!("{key:?} is listed twice"));
    }
    if before.len() == KEYS_MAX {
        return Err(format!("a hook has at most {KEYS_MAX} keys"));
    }
    Ok(())
}

impl Keys {
    /// Keys that a policy changes: attributes can only be read.
    pub(crate) fn parse_changes(input: ParseStream<'_>) -> Result<Keys> {
        let at = input.span();
        let keys = Keys::parse(input)?;
        match keys.listed().iter().find(|key| key.starts_with(':')) {
            Some(key) => Err(Error::new(
                at,
                format!("{key:?} can't be changed: it is what the daemon knows of the caller"),
            )),
            None => Ok(keys),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Keys::Listed(keys) if keys.is_empty())
    }

    /// As in the manifest.
    pub(crate) fn listed(&self) -> Vec<&str> {
        match self {
            Keys::Listed(keys) => keys.iter().map(String::as_str).collect(),
            Keys::Configured => vec!["*"],
        }
    }

    /// The getters; `fields` is the number of fields before the keys, as an expression.
    pub(crate) fn getters(&self, fields: &TokenStream) -> TokenStream {
        let Keys::Listed(keys) = self else {
            return quote! {
                /// The values of a metadata key, by its position in the configuration's list.
                #[inline]
                fn metadata(&self, key: u32) -> ::tollgate_policy::Values<'a> {
                    self.call.values((#fields) + key)
                }
            };
        };
        let places = (0u32..).map(|index| quote!((#fields) + #index));
        let keys = keys.iter().zip(places);
        keys.map(|(key, entry)| getter(key, &entry)).collect()
    }

    /// The setters.
    pub(crate) fn setters(&self) -> TokenStream {
        let Keys::Listed(keys) = self else {
            return quote! {
                /// Sets a metadata key to this one value if the verdict is to allow; by its
                /// position in the configuration's list.
                fn set_metadata(&mut self, key: u32, value: &[u8]) { self.effects.set_metadata(key, value); }
                /// Removes a metadata key if the verdict is to allow; by its position in the
                /// configuration's list.
                fn remove_metadata(&mut self, key: u32) { self.effects.remove_metadata(key); }
            };
        };
        keys.iter()
            .zip(0u32..)
            .map(|(key, index)| setter(key, index))
            .collect()
    }

    /// The names of the getters, which may collide with those of fields.
    pub(crate) fn getter_names(&self) -> Vec<String> {
        match self {
            Keys::Listed(keys) => keys.iter().map(|key| base_name(key)).collect(),
            Keys::Configured => vec!["metadata".to_owned()],
        }
    }

    /// As `tollgate_policy::testing` needs them.
    pub(crate) fn described(&self) -> TokenStream {
        match self {
            Keys::Listed(keys) => {
                quote! { ::tollgate_policy::testing::Keys::Listed(&[#(#keys),*]) }
            }
            Keys::Configured => quote! { ::tollgate_policy::testing::Keys::Configured },
        }
    }
}

/// The getter of `x-user` is `metadata_x_user()`, that of the attribute `:uid` is `caller_uid()`.
fn base_name(key: &str) -> String {
    match key.strip_prefix(':') {
        Some(name) => format!("caller_{name}"),
        None => format!("metadata_{}", key.replace(['-', '.'], "_")),
    }
}

fn is_binary(key: &str) -> bool {
    key.ends_with("-bin")
}

fn getter(key: &str, entry: &TokenStream) -> TokenStream {
    let base = Ident::new(&base_name(key), Span::call_site());
    if key.starts_with(':') {
        let doc = format!(
            "The attribute `{key}` of who calls, if the policy may see it and it is known."
        );
        return quote! {
            #[doc = #doc]
            #[inline]
            fn #base(&self) -> ::core::option::Option<&'a str> { self.call.values(#entry).first_text() }
        };
    }
    let values = format_ident!("{base}_values");
    let (ty, first) = match is_binary(key) {
        true => (quote!([u8]), quote!(first)),
        false => (quote!(str), quote!(first_text)),
    };
    let doc = format!("The first value of the metadata key `{key}`, if the policy may see one.");
    let values_doc = format!("All values of the metadata key `{key}` that the policy may see.");
    quote! {
        #[doc = #doc]
        #[inline]
        fn #base(&self) -> ::core::option::Option<&'a #ty> { self.call.values(#entry).#first() }
        #[doc = #values_doc]
        #[inline]
        fn #values(&self) -> ::tollgate_policy::Values<'a> { self.call.values(#entry) }
    }
}

fn setter(key: &str, index: u32) -> TokenStream {
    let base = base_name(key);
    let (set, remove) = (format_ident!("set_{base}"), format_ident!("remove_{base}"));
    let (ty, bytes) = match is_binary(key) {
        true => (quote!([u8]), quote!(value)),
        false => (quote!(str), quote!(value.as_bytes())),
    };
    let set_doc =
        format!("Sets the metadata key `{key}` to this one value if the verdict is to allow.");
    let remove_doc = format!("Removes the metadata key `{key}` if the verdict is to allow.");
    quote! {
        #[doc = #set_doc]
        fn #set(&mut self, value: &#ty) { self.effects.set_metadata(#index, #bytes); }
        #[doc = #remove_doc]
        fn #remove(&mut self) { self.effects.remove_metadata(#index); }
    }
}

//! Generates the code from the parsed attributes and the schema: view types, constants, the
//! manifest and the dispatch.

use std::path::Path;

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use serde_json::{Map, Value, json};
use syn::{Error, Ident, ItemImpl, LitStr, Result};

use crate::keys::Keys;
use crate::resolve::{self, Field, Fields, Proto, Type};
use crate::spec::{self, Direction, HookFn, List, Spec};

/// A hook with its fields resolved.
struct Hook {
    written: HookFn,
    fields: Fields,
}

/// The whole expansion. `directory` is the directory of the crate's `Cargo.toml`.
pub(crate) fn policy(
    arguments: TokenStream,
    item: TokenStream,
    directory: &Path,
) -> Result<TokenStream> {
    let spec: Spec = syn::parse2(arguments)?;
    let mut block: ItemImpl = syn::parse2(item)?;
    let proto = Proto::compile(&spec, directory)?;
    let hooks = spec::hooks(&mut block)?
        .into_iter()
        .map(|written| {
            let fields = resolve::fields(proto.as_ref(), &written)?;
            Ok(Hook { written, fields })
        })
        .collect::<Result<Vec<_>>>()?;
    check(&spec, &block, &hooks)?;
    let entries = entries(&hooks)?;
    let manifest = manifest(&spec, &hooks, &entries)?;
    let views = views(&hooks)?;
    let lists = lists(&hooks);
    let constants = constants(&spec);
    let policy = implementation(&spec, &block, &hooks, &entries);
    let described = described(&block, &hooks, &entries);
    let watched = spec.proto.as_ref().map(|proto| {
        // Rebuilds the policy when its schema changes.
        quote! { const _: &str = ::core::include_str!(::core::concat!(::core::env!("CARGO_MANIFEST_DIR"), "/", #proto)); }
    });
    let ty = &block.self_ty;
    Ok(quote! {
        #block
        #constants
        #lists
        #(#views)*
        #policy
        #described
        #watched
        ::tollgate_policy::export!(#ty, #manifest);
    })
}

fn check(spec: &Spec, block: &ItemImpl, hooks: &[Hook]) -> Result<()> {
    let here = Span::call_site();
    if spec.name.is_none() {
        return Err(Error::new(here, "set name = \"...\" in #[policy(..)]"));
    }
    if hooks.is_empty() {
        return Err(Error::new(
            here,
            "there is no hook: put #[request(\"package.Service/Method\")] or #[reply(..)] on a function",
        ));
    }
    if spec.has_stateless_replies() && spec.state_version.is_none() {
        return Err(Error::new(
            here,
            "stateless_replies needs a state: set state_version = ... in #[policy(..)], too",
        ));
    }
    for (function, argument, said) in [
        ("tick", "tick_ms", spec.tick_ms.is_some()),
        ("save", "state_version", spec.state_version.is_some()),
        ("restore", "state_version", spec.state_version.is_some()),
    ] {
        match (spec::has_function(block, function), said) {
            (true, false) => {
                return Err(Error::new(
                    here,
                    format!("`fn {function}` exists: set {argument} = ... in #[policy(..)]"),
                ));
            }
            (false, true) => {
                return Err(Error::new(
                    here,
                    format!("{argument} is set, but `fn {function}` doesn't exist"),
                ));
            }
            _ => {}
        }
    }
    let has_lists = hooks.iter().any(|hook| hook.fields.has_lists());
    match (has_lists, spec::has_function(block, "lists")) {
        (true, false) => {
            return Err(Error::new(
                here,
                "the configuration has lists of fields: write `fn lists(&self) -> Lists`, which returns their lengths",
            ));
        }
        (false, true) => {
            return Err(Error::new(
                here,
                "`fn lists` exists, but no hook has a list of the configuration: use reads(config(name)) or changes(config(name))",
            ));
        }
        _ => {}
    }
    for hook in hooks {
        let written = &hook.written;
        let fields = &hook.fields;
        let changes = fields.changes();
        if fields.has_lists() && written.is_untyped() {
            return Err(Error::new(
                written.view.span(),
                format!(
                    "fn {} has fields of the configuration: take its own view type",
                    written.function
                ),
            ));
        }
        if changes && (written.is_untyped() || !written.by_mut) {
            return Err(Error::new(
                written.view.span(),
                format!(
                    "fn {} changes fields: take &mut of its own view type",
                    written.function
                ),
            ));
        }
        if !fields.metadata.is_empty() && written.is_untyped() {
            return Err(Error::new(
                written.view.span(),
                format!(
                    "fn {} reads metadata: take its own view type",
                    written.function
                ),
            ));
        }
    }
    Ok(())
}

/// An entry of the manifest's `methods`: a pattern, and the hook of each direction.
struct Entry<'h> {
    pattern: String,
    request: Option<&'h Hook>,
    reply: Option<&'h Hook>,
}

fn entries(hooks: &[Hook]) -> Result<Vec<Entry<'_>>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for hook in hooks {
        for pattern in &hook.written.patterns {
            let text = pattern.value();
            let at = match entries.iter().position(|entry| entry.pattern == text) {
                Some(at) => at,
                None => {
                    entries.push(Entry {
                        pattern: text,
                        request: None,
                        reply: None,
                    });
                    entries.len() - 1
                }
            };
            let slot = match hook.written.direction {
                Direction::Request => &mut entries[at].request,
                Direction::Reply => &mut entries[at].reply,
            };
            if slot.replace(hook).is_some() {
                return Err(Error::new(
                    pattern.span(),
                    format!("two functions have a hook for {}", pattern.value()),
                ));
            }
        }
    }
    Ok(entries)
}

fn manifest(spec: &Spec, hooks: &[Hook], entries: &[Entry<'_>]) -> Result<String> {
    let mut manifest = Map::new();
    let text = |literal: &Option<LitStr>| literal.as_ref().map(LitStr::value);
    manifest.insert("abi".to_owned(), json!(1));
    manifest.insert("name".to_owned(), json!(text(&spec.name)));
    if let Some(version) = text(&spec.version) {
        manifest.insert("version".to_owned(), json!(version));
    }
    let has = |direction| hooks.iter().any(|h| h.written.direction == direction);
    let mut names = Vec::new();
    names.extend(has(Direction::Request).then_some("request"));
    names.extend(has(Direction::Reply).then_some("reply"));
    names.extend(spec.tick_ms.as_ref().map(|_| "tick"));
    manifest.insert("hooks".to_owned(), json!(names));
    let methods: Vec<Value> = entries.iter().map(entry_json).collect();
    manifest.insert("methods".to_owned(), json!(methods));
    let words = |idents: &[Ident]| -> Vec<String> { idents.iter().map(Ident::to_string).collect() };
    let mut capabilities = words(&spec.capabilities);
    if hooks.iter().any(|h| h.fields.changes()) {
        capabilities.push("change".to_owned());
    }
    for (key, list) in [
        ("counters", words(&spec.counters)),
        ("gauges", words(&spec.gauges)),
        ("histograms", words(&spec.histograms)),
        ("capabilities", capabilities),
    ] {
        if !list.is_empty() {
            manifest.insert(key.to_owned(), json!(list));
        }
    }
    if let Some(tick) = &spec.tick_ms {
        manifest.insert("tick_ms".to_owned(), json!(tick.base10_parse::<u64>()?));
    }
    if let Some(version) = &spec.state_version {
        let version = version.base10_parse::<u32>()?;
        let mut state = Map::from_iter([("version".to_owned(), json!(version))]);
        if spec.has_stateless_replies() {
            state.insert("stateless_replies".to_owned(), json!(true));
        }
        manifest.insert("state".to_owned(), Value::Object(state));
    }
    Ok(Value::Object(manifest).to_string())
}

fn entry_json(entry: &Entry<'_>) -> Value {
    let mut json = Map::new();
    json.insert("method".to_owned(), json!(entry.pattern));
    for (hook, prefix) in [(entry.request, ""), (entry.reply, "reply_")] {
        let Some(Hook { fields, .. }) = hook else {
            continue;
        };
        let items = |fields: &[Field], lists: &[List]| -> Vec<Value> {
            let paths = fields.iter().map(|field| json!(field.path));
            paths.chain(lists.iter().map(List::json)).collect()
        };
        let keys = |keys: &Keys| keys.listed().into_iter().map(Value::from).collect();
        for (key, list) in [
            ("fields", items(&fields.reads, &fields.read_lists)),
            ("changes", items(&fields.changes, &fields.change_lists)),
            ("metadata", keys(&fields.metadata)),
            ("metadata_changes", keys(&fields.metadata_changes)),
        ] {
            if !list.is_empty() {
                json.insert(format!("{prefix}{key}"), json!(list));
            }
        }
    }
    Value::Object(json)
}

impl Fields {
    fn has_lists(&self) -> bool {
        !self.read_lists.is_empty() || !self.change_lists.is_empty()
    }

    /// Whether it changes something of a call.
    fn changes(&self) -> bool {
        let fields = !self.changes.is_empty() || !self.change_lists.is_empty();
        fields || !self.metadata_changes.is_empty()
    }
}

impl List {
    /// As in the manifest.
    fn json(&self) -> Value {
        let name = self.name.to_string();
        match self.types.is_empty() {
            true => json!({ "config": name }),
            false => json!({ "config": name, "types": self.types }),
        }
    }
}

/// The type of the lengths of the configuration's lists, if there are any.
fn lists(hooks: &[Hook]) -> Option<TokenStream> {
    let mut names: Vec<&Ident> = Vec::new();
    for hook in hooks {
        let fields = &hook.fields;
        for list in fields.read_lists.iter().chain(&fields.change_lists) {
            if !names.contains(&&list.name) {
                names.push(&list.name);
            }
        }
    }
    (!names.is_empty()).then(|| {
        quote! {
            /// The lengths of the configuration's lists of fields.
            #[allow(non_snake_case, reason = "the configuration chose the names")]
            #[derive(Clone, Copy, Debug, Default)]
            struct Lists { #(#names: u32,)* }
        }
    })
}

/// The number of entries before a list: the fields that the author names, and earlier lists.
fn begin(fields: usize, before: &[List]) -> TokenStream {
    let fields = fields as u32;
    let before = before.iter().map(|list| &list.name);
    quote!(#fields #(+ self.lists.#before)*)
}

/// `denied` becomes `const DENIED: Counter`.
fn constants(spec: &Spec) -> TokenStream {
    let kinds = [
        (&spec.counters, format_ident!("Counter")),
        (&spec.gauges, format_ident!("Gauge")),
        (&spec.histograms, format_ident!("Histogram")),
    ];
    let constants = kinds.iter().flat_map(|(names, kind)| {
        names.iter().zip(0u32..).map(move |(name, id)| {
            let constant = Ident::new(&name.to_string().to_uppercase(), name.span());
            quote! { const #constant: ::tollgate_policy::#kind = ::tollgate_policy::#kind(#id); }
        })
    });
    quote! { #(#constants)* }
}

/// One view type per name; functions may share one if its fields are the same in both.
fn views(hooks: &[Hook]) -> Result<Vec<TokenStream>> {
    let mut made: Vec<(&Ident, &Fields)> = Vec::new();
    let mut views = Vec::new();
    for hook in hooks.iter().filter(|hook| !hook.written.is_untyped()) {
        let name = &hook.written.view;
        match made.iter().find(|(known, _)| *known == name) {
            Some((_, fields)) if **fields == hook.fields => {}
            Some(_) => {
                return Err(Error::new(
                    name.span(),
                    format!(
                        "`{name}` has different fields in another function; choose another name"
                    ),
                ));
            }
            None => {
                made.push((name, &hook.fields));
                views.push(view(name, &hook.fields)?);
            }
        }
    }
    Ok(views)
}

fn view(name: &Ident, fields: &Fields) -> Result<TokenStream> {
    let mut taken: Vec<String> = Vec::new();
    let mut getters = Vec::new();
    for (field, index) in fields.reads.iter().zip(0u32..) {
        let base = base_name(field);
        if taken.contains(&base) {
            return Err(Error::new(
                name.span(),
                format!("two fields of `{name}` would have the same getter `{base}()`"),
            ));
        }
        getters.push(getter(field, &base, index));
        taken.push(base);
    }
    for base in fields.metadata.getter_names() {
        if taken.contains(&base) {
            return Err(Error::new(
                name.span(),
                format!(
                    "two fields or metadata keys of `{name}` would have the same getter `{base}()`"
                ),
            ));
        }
        taken.push(base);
    }
    for (list, at) in fields.read_lists.iter().zip(0..) {
        let base = list.name.to_string();
        if taken.contains(&base) {
            return Err(Error::new(
                list.name.span(),
                format!(
                    "a field or metadata key, and a list, of `{name}` would have the same getter `{base}()`"
                ),
            ));
        }
        let begin = begin(fields.reads.len(), &fields.read_lists[..at]);
        getters.push(list_getter(list, &begin));
        taken.push(base);
    }
    let before = begin(fields.reads.len(), &fields.read_lists);
    getters.push(fields.metadata.getters(&before));
    let setters = fields
        .changes
        .iter()
        .zip(0u32..)
        .map(|(field, index)| setter(field, &base_name(field), index));
    let list_setters = fields.change_lists.iter().zip(0..).map(|(list, at)| {
        let begin = begin(fields.changes.len(), &fields.change_lists[..at]);
        list_setter(list, &begin)
    });
    let key_setters = fields.metadata_changes.setters();
    let (held, given, taken) = match fields.has_lists() {
        true => (
            quote!(lists: Lists,),
            quote!(, lists: Lists),
            quote!(lists,),
        ),
        false => (quote!(), quote!(), quote!()),
    };
    Ok(quote! {
        /// A call, reduced to the fields and metadata keys that the policy declares.
        #[allow(dead_code, reason = "a policy need not use all declared fields")]
        struct #name<'a> {
            call: ::tollgate_policy::Call<'a>,
            effects: ::tollgate_policy::Effects,
            #held
        }

        #[allow(dead_code, non_snake_case, clippy::all, reason = "the schema chose the names")]
        impl<'a> #name<'a> {
            fn new(call: &::tollgate_policy::Call<'a> #given) -> #name<'a> {
                #name { call: *call, effects: ::tollgate_policy::Effects::new(), #taken }
            }
            #(#getters)*
            #(#setters)*
            #(#list_setters)*
            #key_setters
        }
    })
}

/// The getters of a list of the configuration.
fn list_getter(list: &List, begin: &TokenStream) -> TokenStream {
    let name = &list.name;
    let all = format_ident!("{name}_all");
    let doc = format!(
        "A field of the configuration's list `{name}`, by its position; `None` if it is absent, or the operator withholds it."
    );
    let all_doc = format!("The fields of the configuration's list `{name}`, in its order.");
    quote! {
        #[doc = #doc]
        #[inline]
        fn #name(&self, at: u32) -> ::core::option::Option<::tollgate_policy::Value<'a>> {
            assert!(at < self.lists.#name, "the configuration's list has fewer fields");
            self.call.value((#begin) + at)
        }
        #[doc = #all_doc]
        #[inline]
        fn #all(&self) -> impl ::core::iter::Iterator<Item = ::core::option::Option<::tollgate_policy::Value<'a>>> + use<'a> {
            let (call, begin) = (self.call, #begin);
            (begin..begin + self.lists.#name).map(move |field| call.value(field))
        }
    }
}

/// The setters of a list of the configuration.
fn list_setter(list: &List, begin: &TokenStream) -> TokenStream {
    let name = &list.name;
    let (bytes, bits) = (
        format_ident!("set_{name}_bytes"),
        format_ident!("set_{name}_bits"),
    );
    let clear = format_ident!("clear_{name}");
    let of = format!(
        "a field of the configuration's list `{name}`, by its position, if the verdict is to allow"
    );
    let bytes_doc = format!("Sets {of}: a string (as UTF-8) or bytes.");
    let bits_doc = format!("Sets {of}: a number, bool or enum, as a view has its bits.");
    let clear_doc = format!("Clears {of}.");
    quote! {
        #[doc = #bytes_doc]
        fn #bytes(&mut self, at: u32, value: &[u8]) { self.effects.bytes((#begin) + at, value); }
        #[doc = #bits_doc]
        fn #bits(&mut self, at: u32, value: u64) { self.effects.bits((#begin) + at, value); }
        #[doc = #clear_doc]
        fn #clear(&mut self, at: u32) { self.effects.clear((#begin) + at); }
    }
}

/// The getter of `stay.in_date` is `stay_in_date()`.
fn base_name(field: &Field) -> String {
    field.path.replace('.', "_")
}

fn method_name(name: &str) -> Ident {
    match name {
        "self" | "super" | "crate" | "Self" | "new" => format_ident!("{name}_"),
        _ => syn::parse_str::<Ident>(name)
            .unwrap_or_else(|_| Ident::new_raw(name, Span::call_site())),
    }
}

fn getter(field: &Field, base: &str, index: u32) -> TokenStream {
    let (ty, read) = match field.ty {
        Type::Text => (quote!(&'a str), quote!(self.call.text(#index))),
        Type::Bytes => (quote!(&'a [u8]), quote!(self.call.bytes(#index))),
        Type::I32 | Type::Enum => (quote!(i32), quote!(self.call.int(#index).map(|v| v as i32))),
        Type::I64 => (quote!(i64), quote!(self.call.int(#index))),
        Type::U32 => (
            quote!(u32),
            quote!(self.call.uint(#index).map(|v| v as u32)),
        ),
        Type::U64 => (quote!(u64), quote!(self.call.uint(#index))),
        Type::F32 => (quote!(f32), quote!(self.call.float(#index))),
        Type::F64 => (quote!(f64), quote!(self.call.double(#index))),
        Type::Bool => (quote!(bool), quote!(self.call.boolean(#index))),
    };
    let mut getter = one_getter(field, base, &ty, &read);
    if field.ty == Type::Text {
        // Cheaper for comparisons.
        let bytes = format!("{base}_bytes");
        let read = quote!(self.call.bytes(#index));
        getter.extend(one_getter(field, &bytes, &quote!(&'a [u8]), &read));
    }
    getter
}

/// A field that can be absent is an `Option`. Any other field has a value unless the operator
/// withholds it: then its getter ends the policy, so that calls fail closed, and `..._if_granted`
/// returns `None`.
fn one_getter(field: &Field, base: &str, ty: &TokenStream, read: &TokenStream) -> TokenStream {
    let name = method_name(base);
    let path = &field.path;
    if field.optional {
        let doc = format!("`{path}`, if it is present.");
        return quote! {
            #[doc = #doc]
            #[inline]
            fn #name(&self) -> ::core::option::Option<#ty> { #read }
        };
    }
    let if_granted = format_ident!("{base}_if_granted");
    let doc = format!("`{path}`. Ends the policy if the operator withholds it.");
    let granted_doc = format!("`{path}`, unless the operator withholds it.");
    quote! {
        #[doc = #doc]
        #[inline]
        fn #name(&self) -> #ty {
            match #read {
                ::core::option::Option::Some(value) => value,
                ::core::option::Option::None => ::tollgate_policy::rt::withheld(#path),
            }
        }
        #[doc = #granted_doc]
        #[inline]
        fn #if_granted(&self) -> ::core::option::Option<#ty> { #read }
    }
}

fn setter(field: &Field, base: &str, index: u32) -> TokenStream {
    let (set, clear) = (format_ident!("set_{base}"), format_ident!("clear_{base}"));
    let (ty, store) = match field.ty {
        Type::Text => (quote!(&str), quote!(bytes(#index, value.as_bytes()))),
        Type::Bytes => (quote!(&[u8]), quote!(bytes(#index, value))),
        Type::I32 | Type::Enum => (quote!(i32), quote!(bits(#index, i64::from(value) as u64))),
        Type::I64 => (quote!(i64), quote!(bits(#index, value as u64))),
        Type::U32 => (quote!(u32), quote!(bits(#index, u64::from(value)))),
        Type::U64 => (quote!(u64), quote!(bits(#index, value))),
        Type::F32 => (
            quote!(f32),
            quote!(bits(#index, u64::from(value.to_bits()))),
        ),
        Type::F64 => (quote!(f64), quote!(bits(#index, value.to_bits()))),
        Type::Bool => (quote!(bool), quote!(bits(#index, u64::from(value)))),
    };
    let set_doc = format!("Sets `{}` if the verdict is to allow.", field.path);
    let clear_doc = format!("Clears `{}` if the verdict is to allow.", field.path);
    quote! {
        #[doc = #set_doc]
        fn #set(&mut self, value: #ty) { self.effects.#store; }
        #[doc = #clear_doc]
        fn #clear(&mut self) { self.effects.clear(#index); }
    }
}

fn implementation(
    spec: &Spec,
    block: &ItemImpl,
    hooks: &[Hook],
    entries: &[Entry<'_>],
) -> TokenStream {
    let ty = &block.self_ty;
    let configure = if spec::has_function(block, "configure") {
        quote! { <#ty>::configure(config) }
    } else {
        quote! {
            if !config.is_empty() {
                return ::core::result::Result::Err(::std::string::String::from("this policy has no configuration"));
            }
            ::core::result::Result::Ok(::core::default::Default::default())
        }
    };
    let method = |direction: Direction, name: Ident| {
        hooks.iter().any(|h| h.written.direction == direction).then(|| {
            let arms = entries.iter().zip(0u32..).filter_map(|(entry, index)| {
                let hook = match direction {
                    Direction::Request => entry.request?,
                    Direction::Reply => entry.reply?,
                };
                let body = dispatch(hook);
                Some(quote! { #index => { #body } })
            });
            quote! {
                #[inline]
                fn #name(&mut self, call: &::tollgate_policy::Call<'_>) -> ::tollgate_policy::Verdict<'_> {
                    match call.method() {
                        #(#arms)*
                        _ => ::tollgate_policy::Verdict::Allow,
                    }
                }
            }
        })
    };
    let request = method(Direction::Request, format_ident!("request"));
    let reply = method(Direction::Reply, format_ident!("reply"));
    let tick = spec.tick_ms.as_ref().map(|_| {
        quote! {
            fn tick(&mut self) { <#ty>::tick(self); }
        }
    });
    let state = spec.state_version.as_ref().map(|_| quote! {
        fn save(&mut self) -> ::std::vec::Vec<u8> { <#ty>::save(self) }
        fn restore(&mut self, version: u32, state: &[u8]) -> ::core::result::Result<(), ::std::string::String> {
            <#ty>::restore(self, version, state)
        }
    });
    quote! {
        impl ::tollgate_policy::Policy for #ty {
            fn configure(config: &[u8]) -> ::core::result::Result<Self, ::std::string::String> { #configure }
            #request
            #reply
            #tick
            #state
        }
    }
}

fn dispatch(hook: &Hook) -> TokenStream {
    let (function, view) = (&hook.written.function, &hook.written.view);
    if hook.written.is_untyped() {
        return quote! { self.#function(call) };
    }
    let made = match hook.fields.has_lists() {
        true => quote!(#view::new(call, self.lists())),
        false => quote!(#view::new(call)),
    };
    if !hook.written.by_mut {
        return quote! {
            let view = #made;
            self.#function(&view)
        };
    }
    quote! {
        let mut view = #made;
        let verdict = self.#function(&mut view);
        verdict.with_effects(view.effects)
    }
}

/// The table of field names for `tollgate_policy::testing`.
fn described(block: &ItemImpl, hooks: &[Hook], entries: &[Entry<'_>]) -> TokenStream {
    let ty = &block.self_ty;
    let _ = hooks;
    let list =
        |fields: Option<&[Field]>| {
            let fields = fields.unwrap_or_default().iter().map(|field| {
            let (path, optional) = (&field.path, field.optional);
            let kind = format_ident!("{}", match field.ty {
                Type::Text => "Text",
                Type::Bytes => "Bytes",
                Type::I32 | Type::I64 | Type::Enum => "Int",
                Type::U32 | Type::U64 => "Uint",
                Type::F32 => "Float",
                Type::F64 => "Double",
                Type::Bool => "Bool",
            });
            quote! {
                ::tollgate_policy::testing::FieldInfo {
                    path: #path, kind: ::tollgate_policy::testing::Kind::#kind, optional: #optional,
                }
            }
        });
            quote! { &[#(#fields),*] }
        };
    let methods = entries.iter().map(|entry| {
        let pattern = &entry.pattern;
        let side = |hook: Option<&Hook>| {
            let judged = hook.is_some();
            let reads = list(hook.map(|h| &h.fields.reads[..]));
            let changes = list(hook.map(|h| &h.fields.changes[..]));
            let keys = |keys: Option<&Keys>| keys.cloned().unwrap_or_default().described();
            let metadata = keys(hook.map(|h| &h.fields.metadata));
            let metadata_changes = keys(hook.map(|h| &h.fields.metadata_changes));
            let names = |lists: Option<&[List]>| {
                let names = lists.unwrap_or_default().iter();
                let names = names.map(|list| list.name.to_string());
                quote! { &[#(#names),*] }
            };
            let read_lists = names(hook.map(|h| &h.fields.read_lists[..]));
            let change_lists = names(hook.map(|h| &h.fields.change_lists[..]));
            quote! {
                ::tollgate_policy::testing::HookInfo {
                    judged: #judged, reads: #reads, changes: #changes,
                    read_lists: #read_lists, change_lists: #change_lists, metadata: #metadata, metadata_changes: #metadata_changes,
                }
            }
        };
        let (request, reply) = (side(entry.request), side(entry.reply));
        quote! {
            ::tollgate_policy::testing::MethodInfo { pattern: #pattern, request: #request, reply: #reply }
        }
    });
    quote! {
        #[cfg(not(target_arch = "wasm32"))]
        impl ::tollgate_policy::testing::Described for #ty {
            const METHODS: &'static [::tollgate_policy::testing::MethodInfo] = &[#(#methods),*];
        }
    }
}

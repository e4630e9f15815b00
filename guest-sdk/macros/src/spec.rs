//! The parsed input: the arguments of `#[policy]`, and the hooks in the `impl` block.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, Ident, ImplItem, ImplItemFn, ItemImpl, LitBool, LitInt, LitStr,
    Result, Token, Type, parenthesized,
};

use crate::keys::Keys;

/// The arguments of `#[policy(...)]`.
#[derive(Default)]
pub(crate) struct Spec {
    pub(crate) name: Option<LitStr>,
    pub(crate) version: Option<LitStr>,
    pub(crate) proto: Option<LitStr>,
    pub(crate) includes: Vec<LitStr>,
    pub(crate) counters: Vec<Ident>,
    pub(crate) gauges: Vec<Ident>,
    pub(crate) histograms: Vec<Ident>,
    pub(crate) capabilities: Vec<Ident>,
    pub(crate) tick_ms: Option<LitInt>,
    pub(crate) state_version: Option<LitInt>,
    pub(crate) stateless_replies: Option<LitBool>,
}

impl Spec {
    pub(crate) fn has_stateless_replies(&self) -> bool {
        let given = self.stateless_replies.as_ref();
        given.is_some_and(LitBool::value)
    }
}

impl Parse for Spec {
    fn parse(input: ParseStream<'_>) -> Result<Spec> {
        let mut spec = Spec::default();
        let mut seen: Vec<Ident> = Vec::new();
        while !input.is_empty() {
            let key: Ident = input.call(Ident::parse_any)?;
            if seen.contains(&key) {
                return Err(Error::new(key.span(), format!("`{key}` is set twice")));
            }
            match key.to_string().as_str() {
                "name" => spec.name = Some(value(input)?),
                "version" => spec.version = Some(value(input)?),
                "proto" => spec.proto = Some(value(input)?),
                "tick_ms" => spec.tick_ms = Some(value(input)?),
                "state_version" => spec.state_version = Some(value(input)?),
                "stateless_replies" => spec.stateless_replies = Some(value(input)?),
                "includes" => spec.includes = list(input)?,
                "counters" => spec.counters = list(input)?,
                "gauges" => spec.gauges = list(input)?,
                "histograms" => spec.histograms = list(input)?,
                "capabilities" => spec.capabilities = list(input)?,
                _ => {
                    return Err(Error::new(
                        key.span(),
                        format!(
                            "`{key}` is unknown; the arguments are name, version, proto, includes, counters, gauges, histograms, \
                             capabilities, tick_ms, state_version and stateless_replies"
                        ),
                    ));
                }
            }
            seen.push(key);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(spec)
    }
}

fn value<T: Parse>(input: ParseStream<'_>) -> Result<T> {
    input.parse::<Token![=]>()?;
    input.parse()
}

fn list<T: Parse>(input: ParseStream<'_>) -> Result<Vec<T>> {
    let content;
    parenthesized!(content in input);
    let items = Punctuated::<T, Token![,]>::parse_terminated(&content)?;
    Ok(items.into_iter().collect())
}

/// The direction of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Reply,
}

/// A dotted path such as `stay.in_date`.
#[derive(Clone)]
pub(crate) struct FieldPath(Vec<Ident>);

impl FieldPath {
    /// As in the manifest.
    pub(crate) fn text(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|name| name.unraw().to_string()).collect();
        names.join(".")
    }

    /// The span of its last name, which is the best place for an error.
    pub(crate) fn span(&self) -> Span {
        self.0.last().map_or_else(Span::call_site, Ident::span)
    }
}

impl Parse for FieldPath {
    fn parse(input: ParseStream<'_>) -> Result<FieldPath> {
        let mut names = vec![input.call(Ident::parse_any)?];
        while input.parse::<Option<Token![.]>>()?.is_some() {
            names.push(input.call(Ident::parse_any)?);
        }
        Ok(FieldPath(names))
    }
}

/// The fields of a hook: those that the author names, and then lists that the configuration has.
#[derive(Clone, Default)]
pub(crate) struct FieldsSpec {
    pub(crate) paths: Vec<FieldPath>,
    pub(crate) lists: Vec<List>,
}

/// A list of fields in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) name: Ident,
    /// The types that its fields may have; empty: all.
    pub(crate) types: Vec<String>,
}

/// Types of fields, as the manifest names them.
const TYPES: [&str; 8] = [
    "bool", "int", "uint", "float", "double", "string", "bytes", "enum",
];

/// `(customer_name, stay.in_date, config(mask: string))`, or `(*)` for the list with this name.
fn fields(input: ParseStream<'_>, star: &str) -> Result<FieldsSpec> {
    let content;
    parenthesized!(content in input);
    let mut fields = FieldsSpec::default();
    if let Some(token) = content.parse::<Option<Token![*]>>()? {
        let name = Ident::new(star, token.span());
        fields.lists.push(List {
            name,
            types: Vec::new(),
        });
        return match content.is_empty() {
            true => Ok(fields),
            false => Err(content.error("`*` must be the only entry")),
        };
    }
    while !content.is_empty() {
        if content.peek(Ident) && content.peek2(syn::token::Paren) {
            fields.lists.push(configured(&content, &fields.lists)?);
        } else {
            let path: FieldPath = content.parse()?;
            if !fields.lists.is_empty() {
                return Err(Error::new(
                    path.span(),
                    "fields come before the lists of the configuration",
                ));
            }
            fields.paths.push(path);
        }
        if !content.is_empty() {
            content.parse::<Token![,]>()?;
        }
    }
    Ok(fields)
}

/// `config(mask)` or `config(mask: string, bytes)`.
fn configured(input: ParseStream<'_>, before: &[List]) -> Result<List> {
    let word: Ident = input.parse()?;
    if word != "config" {
        return Err(Error::new(
            word.span(),
            format!("`{word}(..)` is unknown; a list of the configuration is config(name)"),
        ));
    }
    let content;
    parenthesized!(content in input);
    let name: Ident = content.parse()?;
    if ["absent", "methods"].iter().any(|own| name == own) {
        return Err(Error::new(
            name.span(),
            format!("`{name}` is a key of the configuration that the daemon itself reads"),
        ));
    }
    if before.iter().any(|list| list.name == name) {
        return Err(Error::new(name.span(), format!("`{name}` is listed twice")));
    }
    let mut types = Vec::new();
    if content.parse::<Option<Token![:]>>()?.is_some() {
        type Names = Punctuated<Ident, Token![,]>;
        let names = Names::parse_separated_nonempty_with(&content, Ident::parse_any)?;
        for ty in names {
            let text = ty.to_string();
            if !TYPES.contains(&text.as_str()) {
                let all = TYPES.join(", ");
                return Err(Error::new(
                    ty.span(),
                    format!("there is no type `{ty}`; there are {all}"),
                ));
            }
            types.push(text);
        }
    }
    match content.is_empty() {
        true => Ok(List { name, types }),
        false => Err(content.error("a list is config(name), or config(name: string, bytes)")),
    }
}

/// A function with a hook.
pub(crate) struct HookFn {
    pub(crate) direction: Direction,
    pub(crate) patterns: Vec<LitStr>,
    pub(crate) reads: FieldsSpec,
    pub(crate) changes: FieldsSpec,
    pub(crate) metadata: Keys,
    pub(crate) metadata_changes: Keys,
    pub(crate) function: Ident,
    /// The type of its second parameter, without lifetimes.
    pub(crate) view: Ident,
    /// Whether it takes `&mut View`.
    pub(crate) by_mut: bool,
}

impl HookFn {
    /// Whether it takes the untyped `Call`.
    pub(crate) fn is_untyped(&self) -> bool {
        self.view == "Call"
    }
}

#[derive(Default)]
struct HookArguments {
    patterns: Vec<LitStr>,
    reads: FieldsSpec,
    changes: FieldsSpec,
    metadata: Keys,
    metadata_changes: Keys,
}

impl HookArguments {
    fn parse(direction: Direction, input: ParseStream<'_>) -> Result<HookArguments> {
        let (reads, changes) = match direction {
            Direction::Request => ("fields", "changes"),
            Direction::Reply => ("reply_fields", "reply_changes"),
        };
        let mut arguments = HookArguments::default();
        while !input.is_empty() {
            if input.peek(LitStr) {
                arguments.patterns.push(input.parse()?);
            } else {
                let key: Ident = input.parse()?;
                match key.to_string().as_str() {
                    "reads" => arguments.reads = fields(input, reads)?,
                    "changes" => arguments.changes = fields(input, changes)?,
                    "metadata" => arguments.metadata = input.parse()?,
                    "metadata_changes" => arguments.metadata_changes = Keys::parse_changes(input)?,
                    _ => {
                        return Err(Error::new(
                            key.span(),
                            format!(
                                "`{key}` is unknown; a hook has methods as strings, reads(..), changes(..), metadata(..) and \
                                 metadata_changes(..)"
                            ),
                        ));
                    }
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if arguments.patterns.is_empty() {
            return Err(input.error(
                "name a method: \"package.Service/Method\", \"package.Service/*\" or \"*\"",
            ));
        }
        Ok(arguments)
    }
}

/// Takes the hooks' attributes out of the block; the functions stay.
pub(crate) fn hooks(block: &mut ItemImpl) -> Result<Vec<HookFn>> {
    let mut hooks = Vec::new();
    for item in &mut block.items {
        let ImplItem::Fn(function) = item else {
            continue;
        };
        let attributes = std::mem::take(&mut function.attrs);
        for attribute in attributes {
            let direction = if attribute.path().is_ident("request") {
                Direction::Request
            } else if attribute.path().is_ident("reply") {
                Direction::Reply
            } else {
                function.attrs.push(attribute);
                continue;
            };
            hooks.push(hook(direction, &attribute, function)?);
        }
    }
    Ok(hooks)
}

fn hook(direction: Direction, attribute: &Attribute, function: &ImplItemFn) -> Result<HookFn> {
    let arguments = attribute
        .parse_args_with(|input: ParseStream<'_>| HookArguments::parse(direction, input))?;
    let (view, by_mut) = view_type(function)?;
    Ok(HookFn {
        direction,
        patterns: arguments.patterns,
        reads: arguments.reads,
        changes: arguments.changes,
        metadata: arguments.metadata,
        metadata_changes: arguments.metadata_changes,
        function: function.sig.ident.clone(),
        view,
        by_mut,
    })
}

/// The type of the second parameter, and whether it is taken mutably.
fn view_type(function: &ImplItemFn) -> Result<(Ident, bool)> {
    let wrong = |span| {
        Error::new(
            span,
            "a hook is fn(&mut self, &View<'_>) -> Verdict<'_>, with a name of your choice for View, or with Call",
        )
    };
    let inputs: Vec<_> = function.sig.inputs.iter().collect();
    let [FnArg::Receiver(_), FnArg::Typed(parameter)] = inputs[..] else {
        return Err(wrong(function.sig.span()));
    };
    let Type::Reference(reference) = &*parameter.ty else {
        return Err(wrong(parameter.ty.span()));
    };
    let Type::Path(path) = &*reference.elem else {
        return Err(wrong(parameter.ty.span()));
    };
    let last = path.path.segments.last();
    let name = last
        .ok_or_else(|| wrong(parameter.ty.span()))?
        .ident
        .clone();
    Ok((name, reference.mutability.is_some()))
}

/// Whether the block has a function of this name.
pub(crate) fn has_function(block: &ItemImpl, name: &str) -> bool {
    block
        .items
        .iter()
        .any(|item| matches!(item, ImplItem::Fn(function) if function.sig.ident == name))
}

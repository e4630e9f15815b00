//! Services: a client struct, a server trait and its dispatcher.

use crate::model::Service;
use crate::names::Scope;
use crate::rust::names::{Names, bare, camel, snake};
use crate::text::Text;

/// The Rust types of a method, as paths from the module that names them.
struct MethodTypes {
    input: String,
    output: String,
}

pub(crate) fn emit(service: &Service, names: &Names, package: &[String], text: &mut Text) {
    let own = names.of_service(&service.name);
    let constant = &own.constant;
    text.line("");
    text.line(format!(
        "/// `{}`: its name, methods and schema.",
        service.name
    ));
    text.line("#[allow(dead_code)]");
    text.line(format!(
        "pub static {constant}: ::tollgate::ServiceInfo<'static> = ::tollgate::ServiceInfo {{"
    ));
    text.line(format!("name: \"{}\",", service.name));
    let quoted: Vec<_> = service
        .methods
        .iter()
        .map(|m| format!("\"{}\"", m.name))
        .collect();
    text.line(format!("methods: &[{}],", quoted.join(", ")));
    text.line("descriptor_set: DESCRIPTOR_SET,");
    text.line("};");
    let types = |module: &String| -> Vec<MethodTypes> {
        let path: Vec<String> = package.iter().chain([module]).cloned().collect();
        let seen = |name| names.of_type(name).seen_from(&path);
        let methods = service.methods.iter();
        let types = methods.map(|m| MethodTypes {
            input: seen(&m.input),
            output: seen(&m.output),
        });
        types.collect()
    };
    emit_client(service, constant, &own.client, &types(&own.client), text);
    emit_server(service, constant, &own.server, &types(&own.server), text);
}

/// The methods' names, unique in a scope with taken names.
fn methods(service: &Service, scope: &mut Scope) -> Vec<String> {
    scope.take_all(service.methods.iter().map(|m| m.name.as_str()), snake)
}

/// The schema that both client and server send to the daemon.
pub(crate) fn emit_descriptor_set(bytes: &[u8], text: &mut Text) {
    text.line("");
    text.line("/// The compiled schema, a serialized `google.protobuf.FileDescriptorSet`.");
    text.line("#[allow(dead_code)]");
    text.line("pub static DESCRIPTOR_SET: &[u8] = &[");
    text.bytes(bytes);
    text.line("];");
}

fn emit_client(
    service: &Service,
    constant: &str,
    module: &str,
    types: &[MethodTypes],
    text: &mut Text,
) {
    let name = camel(&service.name.name) + "Client";
    text.line("");
    text.line(format!("/// Client of `{}`.", service.name));
    text.line("#[allow(dead_code, clippy::wrong_self_convention)]");
    text.line(format!("pub mod {module} {{"));
    text.line(format!(
        "/// Calls `{}` through a channel; clones share its binding.",
        service.name
    ));
    text.line("#[derive(Clone, Debug)]");
    text.line(format!("pub struct {name} {{"));
    text.lines(["client: ::tollgate::Client,", "}", ""]);
    text.line(format!("impl {name} {{"));
    text.line("/// A client that binds the service with its first call.");
    text.line("pub fn new(channel: ::tollgate::Channel) -> Self {");
    text.line(format!(
        "Self {{ client: ::tollgate::Client::new(channel, &super::{constant}) }}"
    ));
    text.line("}");
    let mut scope = Scope::without(["new"]);
    let names = methods(service, &mut scope);
    for (index, method) in service.methods.iter().enumerate() {
        let MethodTypes { input, output } = &types[index];
        text.line("");
        text.line(format!(
            "/// `{}`.",
            format_args!("{}.{}", service.name, method.name)
        ));
        text.line(format!("pub async fn {}(", names[index]));
        text.line("&self,");
        text.line(match method.client_streaming {
            true => format!("requests: impl ::tollgate::IntoStreamingRequest<{input}>,"),
            false => format!("request: impl ::tollgate::IntoRequest<{input}>,"),
        });
        text.line(match method.server_streaming {
            true => format!(") -> ::tollgate::Reply<::tollgate::Streaming<{output}>> {{"),
            false => format!(") -> ::tollgate::Reply<::tollgate::Received<{output}>> {{"),
        });
        text.line(match (method.client_streaming, method.server_streaming) {
            (false, false) => {
                format!("self.client.unary({index}, request.into_request()).await")
            }
            (false, true) => {
                format!("self.client.server_streaming({index}, request.into_request()).await")
            }
            (true, false) => format!(
                "self.client.client_streaming({index}, requests.into_streaming_request()).await"
            ),
            (true, true) => {
                format!("self.client.streaming({index}, requests.into_streaming_request()).await")
            }
        });
        text.line("}");
        emit_tower(service, index, &types[index], &mut scope, text);
    }
    text.lines(["}", "}"]);
}

/// Writes a unary method as a tower service.
fn emit_tower(
    service: &Service,
    index: usize,
    types: &MethodTypes,
    scope: &mut Scope,
    text: &mut Text,
) {
    let method = &service.methods[index];
    if method.client_streaming {
        return;
    }
    let kind = match method.server_streaming {
        true => "ServerStreamingService",
        false => "UnaryService",
    };
    let name = scope.take(bare(&snake(&method.name)).to_owned() + "_service");
    let MethodTypes { input, output } = types;
    text.line("");
    text.line(format!(
        "/// `{}.{}` as a service of tower's.",
        service.name, method.name
    ));
    text.line(format!(
        "pub fn {name}(&self) -> ::tollgate::{kind}<{input}, {output}> {{"
    ));
    text.line(format!("::tollgate::{kind}::new(&self.client, {index})"));
    text.line("}");
}

fn emit_server(
    service: &Service,
    constant: &str,
    module: &str,
    types: &[MethodTypes],
    text: &mut Text,
) {
    let name = camel(&service.name.name);
    text.line("");
    text.line(format!("/// Server of `{}`.", service.name));
    text.line("#[allow(dead_code, clippy::wrong_self_convention)]");
    text.line(format!("pub mod {module} {{"));
    text.line(format!(
        "/// What an implementation of `{}` offers; each method may be an `async fn`.",
        service.name
    ));
    text.line(format!(
        "pub trait {name}: ::core::marker::Send + ::core::marker::Sync + 'static {{"
    ));
    let names = methods(service, &mut Scope::default());
    let mut streams = Scope::default();
    for (index, method) in service.methods.iter().enumerate() {
        let MethodTypes { input, output } = &types[index];
        let full = format!("{}.{}", service.name, method.name);
        let mut answer = output.clone();
        if method.server_streaming {
            let stream = streams.take(camel(&method.name) + "Stream");
            text.line(format!("/// The responses of `{full}`."));
            text.line(format!("type {stream}: ::tollgate::Stream<Item = ::core::result::Result<{output}, ::tollgate::Status>> + ::core::marker::Send + 'static;"));
            answer = format!("Self::{stream}");
        }
        text.line(format!("/// `{full}`."));
        text.line(format!("fn {}(", names[index]));
        text.line("&self,");
        text.line(match method.client_streaming {
            true => format!("requests: ::tollgate::Request<::tollgate::Streaming<{input}>>,"),
            false => format!("request: ::tollgate::Request<::tollgate::Received<{input}>>,"),
        });
        text.line(format!(
            ") -> impl ::core::future::Future<Output = ::tollgate::Reply<{answer}>> + ::core::marker::Send;"
        ));
    }
    text.lines(["}", ""]);
    emit_dispatcher(service, constant, &name, &names, text);
    text.line("}");
}

fn emit_dispatcher(
    service: &Service,
    constant: &str,
    name: &str,
    names: &[String],
    text: &mut Text,
) {
    // The implementation's type parameter would hide a trait of the same name.
    let of = if name == "T" { "U" } else { "T" };
    text.line(format!(
        "/// Dispatches incoming calls to an implementation of [`{name}`]."
    ));
    text.line("#[derive(Debug)]");
    text.line(format!(
        "pub struct {name}Server<{of}>(::std::sync::Arc<{of}>);"
    ));
    text.line("");
    text.line(format!("impl<{of}: {name}> {name}Server<{of}> {{"));
    text.line("/// Serves with `implementation`.");
    text.line(format!("pub fn new(implementation: {of}) -> Self {{"));
    text.lines(["Self(::std::sync::Arc::new(implementation))", "}", "}", ""]);
    text.line(format!(
        "impl<{of}: {name}> ::tollgate::Service for {name}Server<{of}> {{"
    ));
    text.line("fn info(&self) -> ::tollgate::ServiceInfo<'_> {");
    text.lines([&format!("super::{constant}"), "}", ""]);
    text.line(
        "fn call(&self, method: usize, call: ::tollgate::Incoming) -> ::tollgate::HandlerFuture {",
    );
    const REFUSE: &str = "::std::boxed::Box::pin(::tollgate::unimplemented(call))";
    if service.methods.is_empty() {
        text.line("let _ = method;");
        text.lines([REFUSE, "}", "}"]);
        return;
    }
    text.line("let service = ::std::sync::Arc::clone(&self.0);");
    text.line("match method {");
    for (index, method) in service.methods.iter().enumerate() {
        let accept = match method.client_streaming {
            true => "accept_stream",
            false => "accept",
        };
        let respond = match method.server_streaming {
            true => "respond_stream",
            false => "respond",
        };
        text.line(format!("{index} => ::std::boxed::Box::pin(async move {{"));
        // The call names the trait, because an `Arc` and every value have their own methods:
        // `clone`, `into`.
        let ident = &names[index];
        text.line(format!(
            "let (request, responder) = ::tollgate::{accept}(call);"
        ));
        text.line(format!(
            "let reply = <{of} as {name}>::{ident}(&service, request).await;"
        ));
        text.line(format!("::tollgate::{respond}(responder, reply).await;"));
        text.line("}),");
    }
    text.line(format!("_ => {REFUSE},"));
    text.lines(["}", "}", "}"]);
}

//! Services: a client struct, a server trait and its dispatcher.

use std::fmt::Write as _;

use tollgate_schema::prost_reflect::{MethodDescriptor, ServiceDescriptor};

use crate::names::{TypePath, camel, snake};
use crate::text::Text;

/// Bytes of the descriptor set per line of text.
const BYTES_PER_LINE: usize = 32;

pub(crate) fn emit(service: &ServiceDescriptor, package: &[String], text: &mut Text) {
    let constant = snake(service.name())
        .trim_start_matches("r#")
        .to_ascii_uppercase();
    text.line("");
    text.line(format!(
        "/// `{}`: its name, methods and schema.",
        service.full_name()
    ));
    text.line("#[allow(dead_code)]");
    text.line(format!(
        "pub static {constant}: ::tollgate::ServiceInfo<'static> = ::tollgate::ServiceInfo {{"
    ));
    text.line(format!("name: \"{}\",", service.full_name()));
    let names: Vec<_> = service
        .methods()
        .map(|m| format!("\"{}\"", m.name()))
        .collect();
    text.line(format!("methods: &[{}],", names.join(", ")));
    text.line("descriptor_set: DESCRIPTOR_SET,");
    text.line("};");
    let module = |kind: &str| {
        let name = format!("{}_{kind}", snake(service.name()).trim_start_matches("r#"));
        let path: Vec<String> = package.iter().cloned().chain([name.clone()]).collect();
        (name, path)
    };
    let (name, path) = module("client");
    emit_client(service, &constant, &name, &path, text);
    let (name, path) = module("server");
    emit_server(service, &constant, &name, &path, text);
}

/// The schema that both client and server send to the daemon.
pub(crate) fn emit_descriptor_set(bytes: &[u8], text: &mut Text) {
    text.line("");
    text.line("/// The compiled schema, a serialized `google.protobuf.FileDescriptorSet`.");
    text.line("#[allow(dead_code)]");
    text.line("pub static DESCRIPTOR_SET: &[u8] = &[");
    for row in bytes.chunks(BYTES_PER_LINE) {
        let mut line = String::new();
        for byte in row {
            write!(line, "{byte}, ").expect("a String takes all text");
        }
        text.line(line.trim_end());
    }
    text.line("];");
}

fn emit_client(
    service: &ServiceDescriptor,
    constant: &str,
    module: &str,
    path: &[String],
    text: &mut Text,
) {
    let name = camel(service.name()) + "Client";
    text.line("");
    text.line(format!("/// Client of `{}`.", service.full_name()));
    text.line("#[allow(dead_code)]");
    text.line(format!("pub mod {module} {{"));
    text.line(format!(
        "/// Calls `{}` through a channel; clones share its binding.",
        service.full_name()
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
    for (index, method) in service.methods().enumerate().filter(|(_, m)| is_unary(m)) {
        let (input, output) = types(&method, path);
        text.line("");
        text.line(format!("/// `{}`.", method.full_name()));
        text.line(format!("pub async fn {}(", snake(method.name())));
        text.line("&self,");
        text.line(format!("request: impl ::tollgate::IntoRequest<{input}>,"));
        text.line(format!(
            ") -> ::tollgate::Reply<::tollgate::Received<{output}>> {{"
        ));
        text.line(format!(
            "self.client.unary({index}, request.into_request()).await"
        ));
        text.line("}");
    }
    text.lines(["}", "}"]);
}

fn emit_server(
    service: &ServiceDescriptor,
    constant: &str,
    module: &str,
    path: &[String],
    text: &mut Text,
) {
    let name = camel(service.name());
    text.line("");
    text.line(format!("/// Server of `{}`.", service.full_name()));
    text.line("#[allow(dead_code)]");
    text.line(format!("pub mod {module} {{"));
    text.line(format!(
        "/// What an implementation of `{}` offers; each method may be an `async fn`.",
        service.full_name()
    ));
    text.line(format!(
        "pub trait {name}: ::core::marker::Send + ::core::marker::Sync + 'static {{"
    ));
    for method in service.methods().filter(is_unary) {
        let (input, output) = types(&method, path);
        text.line(format!("/// `{}`.", method.full_name()));
        text.line(format!("fn {}(", snake(method.name())));
        text.line("&self,");
        text.line(format!(
            "request: ::tollgate::Request<::tollgate::Received<{input}>>,"
        ));
        text.line(format!(
            ") -> impl ::core::future::Future<Output = ::tollgate::Reply<{output}>> + ::core::marker::Send;"
        ));
    }
    text.lines(["}", ""]);
    emit_dispatcher(service, constant, &name, text);
    text.line("}");
}

fn emit_dispatcher(service: &ServiceDescriptor, constant: &str, name: &str, text: &mut Text) {
    text.line(format!(
        "/// Dispatches incoming calls to an implementation of [`{name}`]."
    ));
    text.line("#[derive(Debug)]");
    text.line(format!("pub struct {name}Server<T>(::std::sync::Arc<T>);"));
    text.line("");
    text.line(format!("impl<T: {name}> {name}Server<T> {{"));
    text.line("/// Serves with `implementation`.");
    text.line("pub fn new(implementation: T) -> Self {");
    text.lines(["Self(::std::sync::Arc::new(implementation))", "}", "}", ""]);
    text.line(format!(
        "impl<T: {name}> ::tollgate::Service for {name}Server<T> {{"
    ));
    text.line("fn info(&self) -> ::tollgate::ServiceInfo<'_> {");
    text.lines([&format!("super::{constant}"), "}", ""]);
    text.line(
        "fn call(&self, method: usize, call: ::tollgate::Incoming) -> ::tollgate::HandlerFuture {",
    );
    text.line("let service = ::std::sync::Arc::clone(&self.0);");
    text.line("match method {");
    for (index, method) in service.methods().enumerate().filter(|(_, m)| is_unary(m)) {
        text.line(format!("{index} => ::std::boxed::Box::pin(async move {{"));
        let ident = snake(method.name());
        text.line("let (request, responder) = ::tollgate::accept(call);");
        text.line(format!("let reply = service.{ident}(request).await;"));
        text.line("::tollgate::respond(responder, reply).await;");
        text.line("}),");
    }
    text.line("_ => ::std::boxed::Box::pin(::tollgate::unimplemented(call)),");
    text.lines(["}", "}", "}"]);
}

fn is_unary(method: &MethodDescriptor) -> bool {
    !method.is_client_streaming() && !method.is_server_streaming()
}

fn types(method: &MethodDescriptor, path: &[String]) -> (String, String) {
    let name = |m| TypePath::of_message(&m).seen_from(path, "");
    (name(method.input()), name(method.output()))
}

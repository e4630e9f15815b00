//! Services: indexes and names of methods, and the declaration that an application hands to its
//! daemon.

use crate::c::names::{Names, free};
use crate::model::{Method, Service};
use crate::text::Text;

/// Suffixes of a service's names other than its methods'; most of these are in the header of calls.
const OWN: [&str; 6] = [
    "",
    "_methods",
    "_METHODS_",
    "_client",
    "_serve",
    "_handlers",
];

/// Suffixes of the names that a method defines.
fn suffixes(method: &Method) -> Vec<&'static str> {
    let mut all = vec!["", "_NAME_", "_handle_"];
    all.extend(match (method.client_streaming, method.server_streaming) {
        (false, false) => &["_call", "_start", "_reply"][..],
        (true, false) => &["_open", "_send", "_receive", "_next", "_reply"],
        (false, true) => &["_open", "_receive", "_respond"],
        (true, true) => &["_open", "_send", "_receive", "_next", "_respond"],
    });
    all
}

/// The parts of the methods' names after the service's: `_Reserve`.
pub(crate) fn methods(service: &Service) -> Vec<String> {
    let mut taken = OWN.map(str::to_owned).into();
    let methods = service.methods.iter();
    methods
        .map(|m| free(format!("_{}", m.name), &suffixes(m), &mut taken))
        .collect()
}

/// Emits one service; returns the names that it defines, here and in the header of its calls.
pub(crate) fn emit(
    service: &Service,
    names: &Names,
    descriptor_set: &str,
    text: &mut Text,
) -> Vec<String> {
    let name = names.of(&service.name);
    let own = methods(service);
    let mut defined: Vec<_> = OWN.iter().map(|own| format!("{name}{own}")).collect();
    text.line("");
    text.line(format!(
        "/* Service {}: indexes and full names of its methods. */",
        service.name
    ));
    if !service.methods.is_empty() {
        text.line("enum {");
        for (index, (method, own)) in service.methods.iter().zip(&own).enumerate() {
            text.line(format!("{name}{own} = {index},"));
            let all = suffixes(method);
            defined.extend(all.iter().map(|suffix| format!("{name}{own}{suffix}")));
        }
        let last = service.methods.len();
        text.line(format!("{name}_METHODS_ = {last}"));
        text.line("};");
    }
    for (method, own) in service.methods.iter().zip(&own) {
        let (method, full) = (&method.name, &service.name);
        text.line(format!("#define {name}{own}_NAME_ \"{full}/{method}\""));
    }
    let mut methods = "NULL".to_owned();
    if !service.methods.is_empty() {
        methods = format!("{name}_methods");
        text.line(format!("static const tollgate_method {methods}[] = {{"));
        for method in &service.methods {
            let (client, server) = (method.client_streaming, method.server_streaming);
            text.line(format!("{{\"{}\", {client}, {server}}},", method.name));
        }
        text.line("};");
    }
    text.line(format!("static const tollgate_service {name} = {{"));
    text.line(format!("\"{}\",", service.name));
    text.line(format!("{methods},"));
    text.line(format!("{},", service.methods.len()));
    text.line(format!("{descriptor_set},"));
    text.line(format!("sizeof {descriptor_set},"));
    text.line(format!("\"{}\"", service.hash));
    text.line("};");
    defined
}

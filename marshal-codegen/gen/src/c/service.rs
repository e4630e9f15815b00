//! Services: indexes and names of methods, and what an application hands to its daemon.

use crate::c::names::type_name;
use crate::model::Service;
use crate::text::Text;

/// Emits one service; answers what it defined.
pub(crate) fn emit(service: &Service, descriptor_set: &str, text: &mut Text) -> Vec<String> {
    let name = type_name(&service.name);
    let mut defined = vec![name.clone(), format!("{name}_methods")];
    text.line("");
    text.line(format!(
        "/* Service {}: indexes and full names of its methods. */",
        service.name
    ));
    if !service.methods.is_empty() {
        text.line("enum {");
        for (index, method) in service.methods.iter().enumerate() {
            text.line(format!("{name}_{} = {index},", method.name));
            defined.push(format!("{name}_{}", method.name));
        }
        let last = service.methods.len();
        text.line(format!("{name}_METHODS_ = {last}"));
        text.line("};");
    }
    for method in &service.methods {
        let (method, full) = (&method.name, &service.name);
        text.line(format!("#define {name}_{method}_NAME_ \"{full}/{method}\""));
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

//! Enums.

use crate::c::names::Names;
use crate::model::Enum;
use crate::text::Text;

/// Emits an enum; returns the defined names.
pub(crate) fn emit_enum(declared: &Enum, names: &Names, text: &mut Text) -> Vec<String> {
    let name = names.of(&declared.name);
    text.line("");
    text.line(format!(
        "/* {}; may hold numbers that the schema doesn't name. */",
        declared.name
    ));
    text.line(format!("typedef int32_t {name};"));
    text.line("enum {");
    let mut defined = vec![name.clone()];
    for value in &declared.values {
        let number = match value.number {
            // The literal would be a long.
            i32::MIN => "-2147483647 - 1".to_owned(),
            number => number.to_string(),
        };
        let constant = format!("{name}_{}", value.name);
        text.line(format!("{constant} = {number},"));
        defined.push(constant);
    }
    text.line("};");
    defined
}

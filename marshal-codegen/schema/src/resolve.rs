//! Resolves a descriptor set into a model without dangling references.
//!
//! Resolution takes three linear passes:
//!
//! 1. files and their imports;
//! 2. names: every declaration gets its full name, its index and its inherited features;
//! 3. fields and methods, whose types are looked up.
//!
//! Every model that passes can be laid out: references are indices, numbers are legal and distinct,
//! oneofs have members, map entries are entries.
//!
//! The differences between proto2, proto3 and editions end here. A syntax is a set of features. A
//! declaration inherits the features of its surrounding declaration and may set its own. The model
//! only holds the consequences: how a field tells its presence, whether an enum is closed, whether
//! a repeated field is packed, whether a message is delimited.
//!
//! Deliberately absent: relative type names (no compiler writes them), visibility by imports (it
//! decides which source compiles, not its meaning), extensions (a block treats them as unknown
//! fields; only their names are checked), and defaults.

use std::collections::{HashMap, HashSet};

use crate::SchemaError;
use crate::descriptor;
use crate::error::shown;
use crate::limits::{MAX_ENUM_VALUES, MAX_FIELDS, MAX_METHODS};

mod features;
mod field;
mod model;
mod names;
mod symbol;

pub(crate) use model::{Enum, Field, Label, Message, Method, Model, Service, Value};
pub(crate) use symbol::{EnumIndex, MessageIndex};

use features::Inherited;
use field::Pending;
use symbol::Symbol;

impl Model {
    /// Resolves the files of a descriptor set.
    pub(crate) fn resolve(files: &[descriptor::File<'_>]) -> Result<Model, SchemaError> {
        let distinct = distinct(files)?;
        check_imports(&distinct)?;
        let mut resolver = Resolver::default();
        resolver.model.files = distinct.len();
        resolver.model.has_repeated_files = distinct.len() < files.len();
        for file in distinct {
            resolver.declare_file(file)?;
        }
        let Resolver {
            mut model,
            pending,
            services,
        } = resolver;
        // Fields only refer to names and enums, so each message can be taken out, filled and put
        // back.
        for (at, declared) in pending.iter().enumerate() {
            let (fields, oneofs) = field::resolve(&model, at, declared)?;
            model.messages[at].fields = fields;
            model.messages[at].oneofs = oneofs;
        }
        for declared in &pending {
            if declared.message.map_entry {
                field::check_entry(&model, &model.messages[declared.index()])?;
            }
        }
        for (service, declared) in services.iter().enumerate() {
            model.services[service].methods = model.methods(service, declared)?;
        }
        Ok(model)
    }

    fn methods(
        &self,
        service: usize,
        declared: &descriptor::Service<'_>,
    ) -> Result<Vec<Method>, SchemaError> {
        let service = &self.services[service].name;
        let count = declared.methods.len();
        if count > MAX_METHODS {
            return Err(SchemaError::TooManyMethods {
                service: service.clone(),
                count,
            });
        }
        let mut methods = Vec::with_capacity(count);
        for method in &declared.methods {
            let message = |name: &str| {
                let found = name.strip_prefix('.').and_then(|n| self.find_message(n));
                let found = found.ok_or_else(|| SchemaError::UnknownType {
                    user: format!("method {service}.{}", method.name),
                    name: shown(name),
                    wanted: "a message",
                })?;
                if self.message(found).is_map_entry {
                    let message = self.message(found).name.clone();
                    return Err(SchemaError::InvalidMapEntry { message });
                }
                Ok(found)
            };
            methods.push(Method {
                name: method.name.to_owned(),
                input: message(method.input)?,
                output: message(method.output)?,
                client_streaming: method.client_streaming,
                server_streaming: method.server_streaming,
            });
        }
        Ok(methods)
    }
}

/// The distinct files: concatenated sets share their imports, and each such file is kept once.
fn distinct<'f, 'a>(
    files: &'f [descriptor::File<'a>],
) -> Result<Vec<&'f descriptor::File<'a>>, SchemaError> {
    let mut by_name: HashMap<&str, &[u8]> = HashMap::with_capacity(files.len());
    let mut distinct = Vec::with_capacity(files.len());
    for file in files {
        names::check_file_name(file.name)?;
        match by_name.insert(file.name, file.bytes) {
            None => distinct.push(file),
            Some(bytes) if bytes == file.bytes => {}
            Some(_) => {
                return Err(SchemaError::DuplicateFile {
                    file: shown(file.name),
                });
            }
        }
    }
    Ok(distinct)
}

/// Checks that every import exists and that imports form no circle.
fn check_imports(files: &[&descriptor::File<'_>]) -> Result<(), SchemaError> {
    let by_name: HashMap<&str, usize> = files.iter().map(|f| f.name).zip(0..).collect();
    let mut imports: Vec<Vec<usize>> = Vec::with_capacity(files.len());
    let mut importers: Vec<Vec<usize>> = vec![Vec::new(); files.len()];
    for (at, file) in files.iter().enumerate() {
        let mut own = Vec::with_capacity(file.imports.len());
        for import in &file.imports {
            let found = by_name.get(import);
            let found = *found.ok_or_else(|| SchemaError::MissingImport {
                file: shown(file.name),
                import: shown(import),
            })?;
            own.push(found);
            importers[found].push(at);
        }
        imports.push(own);
    }
    // A file is done once its imports are done; each remaining file leads into a circle.
    let mut open: Vec<usize> = imports.iter().map(Vec::len).collect();
    let mut done: Vec<usize> = (0..files.len()).filter(|&i| open[i] == 0).collect();
    let mut next = 0;
    while let Some(&file) = done.get(next) {
        next += 1;
        for &importer in &importers[file] {
            open[importer] -= 1;
            if open[importer] == 0 {
                done.push(importer);
            }
        }
    }
    let Some(mut at) = (0..files.len()).find(|&i| open[i] > 0) else {
        return Ok(());
    };
    let left_over = |file: usize| imports[file].iter().copied().find(|&i| open[i] > 0);
    let mut met = HashSet::new();
    while met.insert(at) {
        at = left_over(at).unwrap_or(at);
    }
    let import = left_over(at).unwrap_or(at);
    Err(SchemaError::CyclicImport {
        file: shown(files[at].name),
        import: shown(files[import].name),
    })
}

/// The pass that names all declarations.
#[derive(Default)]
struct Resolver<'f, 'a> {
    model: Model,
    /// Parallel to the model's messages.
    pending: Vec<Pending<'f, 'a>>,
    /// Parallel to the model's services.
    services: Vec<&'f descriptor::Service<'a>>,
}

/// The scope of a declaration.
#[derive(Clone, Copy)]
struct Scope<'s> {
    /// Full name of the package or message; empty outside of packages.
    name: &'s str,
    features: Inherited,
    is_message: bool,
}

impl<'f, 'a> Resolver<'f, 'a> {
    fn declare_file(&mut self, file: &'f descriptor::File<'a>) -> Result<(), SchemaError> {
        let features = Inherited::of_file(file)?;
        self.model.names.enter_file(file.name);
        self.model.has_editions |= features.is_edition;
        self.model.names.declare_package(file.package)?;
        let scope = Scope {
            name: file.package,
            features,
            is_message: false,
        };
        for message in &file.messages {
            self.declare_message(message, scope)?;
        }
        for declared in &file.enums {
            self.declare_enum(declared, scope)?;
        }
        for extension in &file.extensions {
            let names = &mut self.model.names;
            names.declare(file.package, extension.name, Symbol::Other)?;
        }
        for service in &file.services {
            self.declare_service(service, scope)?;
        }
        Ok(())
    }

    /// The recursion is as deep as messages nest, and reading has bounded that.
    fn declare_message(
        &mut self,
        message: &'f descriptor::Message<'a>,
        outer: Scope<'_>,
    ) -> Result<(), SchemaError> {
        let index = MessageIndex(self.model.messages.len() as u32);
        let names = &mut self.model.names;
        let name = names.declare(outer.name, message.name, Symbol::Message(index))?;
        let features = outer.features.with(&message.features, || name.clone())?;
        self.pending.push(Pending {
            index,
            message,
            features,
        });
        self.model.messages.push(Message {
            name: name.clone(),
            fields: Vec::new(),
            oneofs: Vec::new(),
            is_map_entry: message.map_entry,
        });
        let count = message.fields.len();
        if count > MAX_FIELDS {
            return Err(SchemaError::TooManyFields {
                message: name,
                count,
            });
        }
        let mut members = names::Members::new(&name, count);
        for field in &message.fields {
            members.add(field.name, names)?;
        }
        for oneof in &message.oneofs {
            members.add(oneof.name, names)?;
        }
        for extension in &message.extensions {
            members.add(extension.name, names)?;
        }
        for nested in &message.messages {
            members.add(nested.name, names)?;
        }
        for declared in &message.enums {
            members.add(declared.name, names)?;
            for (value, _) in &declared.values {
                members.add(value, names)?;
            }
        }
        let scope = Scope {
            name: &name,
            features,
            is_message: true,
        };
        for nested in &message.messages {
            self.declare_message(nested, scope)?;
        }
        for declared in &message.enums {
            self.declare_enum(declared, scope)?;
        }
        Ok(())
    }

    fn declare_enum(
        &mut self,
        declared: &descriptor::Enum<'a>,
        outer: Scope<'_>,
    ) -> Result<(), SchemaError> {
        let index = EnumIndex(self.model.enums.len() as u32);
        let names = &mut self.model.names;
        let name = names.declare(outer.name, declared.name, Symbol::Enum(index))?;
        let count = declared.values.len();
        if count > MAX_ENUM_VALUES {
            return Err(SchemaError::TooManyValues { name, count });
        }
        // A value is a sibling of its enum. Inside a message, the message has checked that it is
        // the only one.
        for (value, _) in &declared.values {
            if !outer.is_message {
                names.declare(outer.name, value, Symbol::Other)?;
            }
            names::check(value, &name)?;
        }
        let features = outer.features.with(&declared.features, || name.clone())?;
        check_enum(declared, &name, features)?;
        let closed = features.is_closed.then(|| {
            let mut values: Vec<_> = declared.values.iter().map(|(_, number)| *number).collect();
            values.sort_unstable();
            values.dedup();
            values.into()
        });
        let values = declared.values.iter();
        self.model.enums.push(Enum {
            name,
            values: values.map(|(n, v)| ((*n).to_owned(), *v)).collect(),
            closed,
        });
        Ok(())
    }

    fn declare_service(
        &mut self,
        service: &'f descriptor::Service<'a>,
        outer: Scope<'_>,
    ) -> Result<(), SchemaError> {
        let index = self.model.services.len() as u32;
        let names = &mut self.model.names;
        let name = names.declare(outer.name, service.name, Symbol::Service(index))?;
        let mut members = names::Members::new(&name, service.methods.len());
        for method in &service.methods {
            members.add(method.name, names)?;
        }
        self.services.push(service);
        self.model.services.push(Service {
            name,
            methods: Vec::new(),
        });
        Ok(())
    }
}

fn check_enum(
    declared: &descriptor::Enum<'_>,
    name: &str,
    features: Inherited,
) -> Result<(), SchemaError> {
    let invalid = |reason: String| SchemaError::InvalidEnum {
        name: name.to_owned(),
        reason,
    };
    match declared.values.first() {
        None => return Err(invalid("has no values".to_owned())),
        Some((value, number)) if !features.is_closed && *number != 0 => {
            return Err(invalid(format!(
                "is open, so its first value must be 0; {value} is {number}"
            )));
        }
        Some(_) => {}
    }
    let ranges = declared.reserved_ranges.iter();
    // An enum's reserved ranges include their ends.
    let ranges = names::Ranges::new(ranges.map(|(a, b)| (i64::from(*a), i64::from(*b) + 1)));
    let reserved: HashSet<&str> = declared.reserved_names.iter().copied().collect();
    for (value, number) in &declared.values {
        if ranges.contain(*number) || reserved.contains(value) {
            return Err(invalid(format!(
                "has the value {value} = {number}, which it reserves"
            )));
        }
    }
    Ok(())
}

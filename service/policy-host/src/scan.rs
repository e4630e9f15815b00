//! The check of a module before the compiler sees it.
//!
//! One pass validates the bytes with exactly the enabled features and counts the constructs that
//! make compilers slow. Modules of under 1 MB have kept Cranelift busy for 40 s, or filled 600 MB,
//! by deep nesting, by thousands of locals times thousands of blocks, or by huge branch tables. The
//! pass itself takes a third of a millisecond for an ordinary policy. It also finds the manifest
//! and names an import that doesn't exist.

use wasmparser::{
    FuncToValidate, FuncValidatorAllocations, FunctionBody, Imports, Operator, Parser, Payload,
    ValidPayload, Validator, ValidatorResources, WasmFeatures,
};

use crate::compat::Abi;
use crate::sections::{MANIFEST_SECTION, invalid, manifests};
use crate::text::cut;
use crate::{LoadError, Manifest, imports, limits, opa, proxy_wasm, wasi};

/// All features beyond WebAssembly 1.0 that a module may use; the engine is configured with the
/// same set.
pub(crate) const FEATURES: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::FLOATS);

/// The limits that differ between interfaces.
struct Bounds {
    module_bytes: usize,
    functions: u32,
    segments: u32,
    imports: u32,
    nesting: u32,
    branch_targets: u32,
    cost: u64,
}

/// The rules for a module's scan, which its manifest selects.
struct Rules {
    abi: Option<Abi>,
    has_wasi: bool,
    bounds: Bounds,
}

impl Rules {
    fn of(manifest: Option<&Manifest>) -> Rules {
        let abi = manifest
            .and_then(Manifest::compat)
            .map(|compat| compat.abi());
        let has_wasi = manifest.is_some_and(Manifest::has_wasi);
        let bounds = match abi.is_some() || has_wasi {
            false => Bounds {
                module_bytes: limits::MODULE_BYTES,
                functions: limits::FUNCTIONS,
                segments: limits::DATA_SEGMENTS,
                imports: limits::IMPORTS,
                nesting: limits::NESTING,
                branch_targets: limits::BRANCH_TARGETS,
                cost: limits::COMPILE_COST,
            },
            true => Bounds {
                module_bytes: limits::COMPAT_MODULE_BYTES,
                functions: limits::COMPAT_FUNCTIONS,
                segments: limits::COMPAT_DATA_SEGMENTS,
                imports: limits::COMPAT_IMPORTS,
                nesting: limits::COMPAT_NESTING,
                branch_targets: limits::COMPAT_BRANCH_TARGETS,
                cost: limits::COMPAT_COMPILE_COST,
            },
        };
        Rules {
            abi,
            has_wasi,
            bounds,
        }
    }
}

/// The module's only manifest, if there is one and it parses.
fn peek(wasm: &[u8]) -> Option<Manifest> {
    let manifests = manifests(wasm).ok()?;
    let [manifest] = manifests[..] else {
        return None;
    };
    Manifest::parse(manifest).ok()
}

/// Scans a module and returns its manifest's bytes.
pub(crate) fn scan(wasm: &[u8]) -> Result<&[u8], LoadError> {
    let rules = Rules::of(peek(wasm).as_ref());
    if wasm.len() > rules.bounds.module_bytes {
        return Err(LoadError::TooLarge {
            bytes: wasm.len(),
            max: rules.bounds.module_bytes,
        });
    }
    check_preamble(wasm)?;
    let mut validator = Validator::new_with_features(FEATURES);
    let mut allocations = FuncValidatorAllocations::default();
    let mut cost = 0;
    let mut manifests = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(invalid)?;
        check_section(&payload, &rules)?;
        if let Payload::CustomSection(section) = &payload
            && section.name() == MANIFEST_SECTION
        {
            manifests.push(section.data());
        }
        if let ValidPayload::Func(func, body) = validator.payload(&payload).map_err(invalid)? {
            // Counted first: validation itself must not process a bomb.
            cost += function_cost(&body, &rules.bounds)?;
            bound("units of compile cost", cost, rules.bounds.cost)?;
            allocations = validate(func, &body, allocations)?;
        }
    }
    match manifests[..] {
        [manifest] => Ok(manifest),
        _ => Err(LoadError::ManifestCount(manifests.len())),
    }
}

fn check_preamble(wasm: &[u8]) -> Result<(), LoadError> {
    let begins = &wasm[..wasm.len().min(8)];
    if Parser::is_component(wasm) {
        Err(LoadError::NotWasm(
            "it is a component; build a core module".to_owned(),
        ))
    } else if !Parser::is_core_wasm(wasm) {
        Err(LoadError::NotWasm(match begins {
            [] => "it is empty".to_owned(),
            _ => format!("it begins with \"{}\"", begins.escape_ascii()),
        }))
    } else {
        Ok(())
    }
}

fn bound(what: &'static str, count: u64, max: impl Into<u64>) -> Result<(), LoadError> {
    let max = max.into();
    if count > max {
        Err(LoadError::TooComplex { what, count, max })
    } else {
        Ok(())
    }
}

/// Bounds the counts that sections announce, before iterating over them.
fn check_section(payload: &Payload<'_>, rules: &Rules) -> Result<(), LoadError> {
    let bounds = &rules.bounds;
    let (what, count, max) = match payload {
        Payload::TypeSection(s) => ("types", s.count(), limits::TYPES),
        Payload::FunctionSection(s) => ("functions", s.count(), bounds.functions),
        Payload::GlobalSection(s) => ("globals", s.count(), limits::GLOBALS),
        Payload::ExportSection(s) => ("exports", s.count(), limits::EXPORTS),
        Payload::ElementSection(s) => ("element segments", s.count(), bounds.segments),
        Payload::DataSection(s) => ("data segments", s.count(), bounds.segments),
        Payload::ImportSection(s) => ("imports", s.count(), bounds.imports),
        Payload::TableSection(s) => ("tables", s.count(), limits::TABLES),
        _ => return Ok(()),
    };
    bound(what, count.into(), max)?;
    match payload {
        Payload::ImportSection(section) => check_imports(section.clone(), rules),
        Payload::TableSection(section) => check_tables(section.clone()),
        _ => Ok(()),
    }
}

fn check_tables(section: wasmparser::TableSectionReader<'_>) -> Result<(), LoadError> {
    for table in section {
        let elements = table.map_err(invalid)?.ty.initial;
        let most = limits::TABLE_ELEMENTS_MAX as u64;
        bound("elements in one table", elements, most)?;
    }
    Ok(())
}

fn check_imports(
    section: wasmparser::ImportSectionReader<'_>,
    rules: &Rules,
) -> Result<(), LoadError> {
    for group in section {
        // Compact import groups belong to a disabled feature; the validator refuses them by name.
        let Imports::Single(_, import) = group.map_err(invalid)? else {
            continue;
        };
        let (module, name) = (import.module, import.name);
        let offered = match rules.abi {
            None => imports::offers(module, name, rules.has_wasi),
            Some(Abi::ProxyWasm) => proxy_wasm::offers(module, name),
            Some(Abi::Opa) => opa::offers(module, name),
        };
        if offered {
            continue;
        }
        let (module, name) = (cut(module), cut(name));
        let page = match rules.abi {
            None if module == wasi::MODULE && !rules.has_wasi => {
                return Err(LoadError::UndeclaredWasi { name });
            }
            None => return Err(LoadError::UnknownImport { module, name }),
            Some(Abi::ProxyWasm) => "service/policy-host/PROXY_WASM.md",
            Some(Abi::Opa) => "service/policy-host/OPA.md",
        };
        return Err(LoadError::UnknownCompatImport { module, name, page });
    }
    Ok(())
}

/// Estimates the cost of compiling a function and refuses functions that no honest compiler emits.
fn function_cost(body: &FunctionBody<'_>, bounds: &Bounds) -> Result<u64, LoadError> {
    bound(
        "bytes in one function",
        body.range().len() as u64,
        limits::FUNCTION_BYTES as u64,
    )?;
    let mut locals = 0;
    for group in body.get_locals_reader().map_err(invalid)? {
        locals += u64::from(group.map_err(invalid)?.0);
    }
    bound("locals in one function", locals, limits::LOCALS)?;
    let (mut depth, mut blocks, mut work) = (0u32, 0u64, 0u64);
    for operator in body.get_operators_reader().map_err(invalid)? {
        work += 1;
        match operator.map_err(invalid)? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                depth += 1;
                blocks += 1;
                bound("nested blocks", depth.into(), bounds.nesting)?;
            }
            Operator::End => depth = depth.saturating_sub(1),
            Operator::BrTable { targets } => {
                bound(
                    "targets in one branch",
                    targets.len().into(),
                    bounds.branch_targets,
                )?;
                work += u64::from(targets.len());
            }
            _ => {}
        }
    }
    bound(
        "blocks times locals in one function",
        blocks * locals,
        limits::BLOCKS_TIMES_LOCALS,
    )?;
    Ok(work + blocks * locals / 8)
}

fn validate(
    func: FuncToValidate<ValidatorResources>,
    body: &FunctionBody<'_>,
    allocations: FuncValidatorAllocations,
) -> Result<FuncValidatorAllocations, LoadError> {
    let mut validator = func.into_validator(allocations);
    validator.validate(body).map_err(invalid)?;
    Ok(validator.into_allocations())
}

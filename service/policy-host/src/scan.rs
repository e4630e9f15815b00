//! The look at a module before the compiler sees it.
//!
//! One pass validates the bytes with exactly the features that are on and counts what makes compilers slow: modules of
//! under 1 MB have kept Cranelift busy for 40 s, or filled 600 MB, by deep nesting, by thousands of locals times
//! thousands of blocks, or by huge branch tables. The pass itself takes a third of a millisecond for an
//! ordinary policy. It also finds the manifest and names an import that doesn't exist.

use wasmparser::{
    FuncToValidate, FuncValidatorAllocations, FunctionBody, Imports, Operator, Parser, Payload,
    ValidPayload, Validator, ValidatorResources, WasmFeatures,
};

use crate::{LoadError, error::cut, imports, limits};

/// The custom section that holds the manifest.
const MANIFEST_SECTION: &str = "tollgate.manifest";

/// Everything a module may use beyond WebAssembly 1.0; the engine is configured with the same set.
pub(crate) const FEATURES: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::FLOATS);

/// Scans a module and returns its manifest's bytes.
pub(crate) fn scan(wasm: &[u8]) -> Result<&[u8], LoadError> {
    if wasm.len() > limits::MODULE_BYTES {
        return Err(LoadError::TooLarge {
            bytes: wasm.len(),
            max: limits::MODULE_BYTES,
        });
    }
    check_preamble(wasm)?;
    let mut validator = Validator::new_with_features(FEATURES);
    let mut allocations = FuncValidatorAllocations::default();
    let mut cost = 0;
    let mut manifests = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(invalid)?;
        check_section(&payload)?;
        if let Payload::CustomSection(section) = &payload
            && section.name() == MANIFEST_SECTION
        {
            manifests.push(section.data());
        }
        if let ValidPayload::Func(func, body) = validator.payload(&payload).map_err(invalid)? {
            // Counted first: validation itself must not meet a bomb.
            cost += function_cost(&body)?;
            bound("units of compile cost", cost, limits::COMPILE_COST)?;
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
        Err(LoadError::NotWasm(format!("it begins with {begins:02x?}")))
    } else {
        Ok(())
    }
}

fn invalid(error: wasmparser::BinaryReaderError) -> LoadError {
    LoadError::Invalid(cut(&error.to_string()))
}

fn bound(what: &'static str, count: u64, max: impl Into<u64>) -> Result<(), LoadError> {
    let max = max.into();
    if count > max {
        Err(LoadError::TooComplex { what, count, max })
    } else {
        Ok(())
    }
}

/// Bounds the counts that sections announce, before anybody iterates over them.
fn check_section(payload: &Payload<'_>) -> Result<(), LoadError> {
    let (what, count, max) = match payload {
        Payload::TypeSection(s) => ("types", s.count(), limits::TYPES),
        Payload::FunctionSection(s) => ("functions", s.count(), limits::FUNCTIONS),
        Payload::GlobalSection(s) => ("globals", s.count(), limits::GLOBALS),
        Payload::ExportSection(s) => ("exports", s.count(), limits::EXPORTS),
        Payload::ElementSection(s) => ("element segments", s.count(), limits::DATA_SEGMENTS),
        Payload::DataSection(s) => ("data segments", s.count(), limits::DATA_SEGMENTS),
        Payload::ImportSection(s) => ("imports", s.count(), limits::IMPORTS),
        _ => return Ok(()),
    };
    bound(what, count.into(), max)?;
    match payload {
        Payload::ImportSection(section) => check_imports(section.clone()),
        _ => Ok(()),
    }
}

fn check_imports(section: wasmparser::ImportSectionReader<'_>) -> Result<(), LoadError> {
    for group in section {
        // Compact import groups belong to a feature that is off; the validator refuses them by name.
        let Imports::Single(_, import) = group.map_err(invalid)? else {
            continue;
        };
        let offered = imports::FUNCTIONS
            .iter()
            .any(|(name, ..)| *name == import.name);
        if import.module != imports::MODULE || !offered {
            return Err(LoadError::UnknownImport {
                module: cut(import.module),
                name: cut(import.name),
            });
        }
    }
    Ok(())
}

/// Counts what compiling a function will cost and refuses what no honest compiler emits.
fn function_cost(body: &FunctionBody<'_>) -> Result<u64, LoadError> {
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
                bound("nested blocks", depth.into(), limits::NESTING)?;
            }
            Operator::End => depth = depth.saturating_sub(1),
            Operator::BrTable { targets } => {
                bound(
                    "targets in one branch",
                    targets.len().into(),
                    limits::BRANCH_TARGETS,
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

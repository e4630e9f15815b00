//! `tollgate policy new`, `test`, `bench`, `inspect`, `rules` and `validation`: work without a
//! daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tollgate_policy_tools::{Bench, Cases, Module, Setting, ToolError};
use tollgate_schema::Schema;
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::output::plain;
use crate::policy::{Against, schema_of};
use crate::project::New;
use crate::stderr::warn;
use crate::{output, project, rules, schema};

/// The exit status when cases failed: 1, as with all test runners. No other failure of these
/// commands has it.
const CASES_FAILED: u8 = 1;

#[derive(Debug, Subcommand)]
pub(crate) enum Tool {
    /// Make a project for a policy: sources that build, and a test of it without a daemon
    New(New),
    /// Run a module on a file of test cases, without a daemon
    #[command(after_help = "The exit status is 1 if a case failed.\n\n\
         Example: tollgate policy test ./acl.wasm --cases cases.json --proto hotel.proto")]
    Test(Test),
    /// Measure the cost of a module per call, without a daemon
    #[command(after_help = "Example: tollgate policy bench ./acl.wasm --config acl.json")]
    Bench(Measure),
    /// Show a module's manifest, imports and size
    Inspect(Inspect),
    /// Compile rules in CEL to a module, and show what they read and change
    #[command(
        after_help = "Without -o, nothing is written. `policy push --rules` compiles and pushes at once.\n\n\
         Example: tollgate policy rules rules.toml --proto hotel.proto -o gate.wasm"
    )]
    Rules(Rules),
    /// Write rules for the constraints that a schema declares with buf.validate
    #[command(
        after_help = "The rules are a file for `policy rules` and `policy push --rules`: they deny requests that \
         violate a constraint with INVALID_ARGUMENT.\n\n\
         Example: tollgate policy validation --proto shop.proto -I . -o validation.toml"
    )]
    Validation(Validation),
}

/// What defines the services of the cases.
#[derive(Debug, Args)]
pub(crate) struct Protos {
    /// Schemas of the services, in addition to the `proto` of the cases: .proto files, directories,
    /// descriptor sets
    #[arg(long, value_name = "PATH")]
    pub(crate) proto: Vec<PathBuf>,
    /// The directories of imports, in addition to the `include` of the cases
    #[arg(long, short = 'I', value_name = "DIR")]
    pub(crate) include: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Test {
    /// The policy: a core WebAssembly module with a manifest
    #[arg(value_name = "FILE.wasm")]
    pub(crate) module: PathBuf,
    /// The cases, in JSON
    #[arg(long, value_name = "FILE.json")]
    pub(crate) cases: PathBuf,
    #[command(flatten)]
    pub(crate) protos: Protos,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Measure {
    /// The policy: a core WebAssembly module with a manifest
    #[arg(value_name = "FILE.wasm")]
    pub(crate) module: PathBuf,
    /// Messages to measure with; messages without fields if left out
    #[arg(long, value_name = "FILE.json")]
    pub(crate) cases: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) protos: Protos,
    /// The policy's configuration; with --cases, the cases have it
    #[arg(long, value_name = "FILE.json", conflicts_with = "cases")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The policy: a core WebAssembly module with a manifest
    #[arg(value_name = "FILE.wasm")]
    pub(crate) module: PathBuf,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Rules {
    /// The rules
    #[arg(value_name = "FILE.toml")]
    pub(crate) rules: PathBuf,
    /// The policy's name, if the file has none
    #[arg(long, default_value = "rules")]
    pub(crate) name: String,
    /// The module to write
    #[arg(long, short, value_name = "FILE.wasm")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) against: Against,
}

#[derive(Debug, Args)]
pub(crate) struct Validation {
    #[command(flatten)]
    pub(crate) files: schema::Files,
    /// Only requests of this service; repeat for more. All services of the schema if left out
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Vec<String>,
    /// Write the rules although some constraints can't be checked, and list those on standard
    /// error. Without it, the command then writes nothing and fails
    #[arg(long)]
    pub(crate) partial: bool,
    /// The file to write; standard output if left out
    #[arg(long, short, value_name = "FILE.toml")]
    pub(crate) output: Option<PathBuf>,
}

/// Runs the command and prints the answer. A failed case is an answer, too.
pub(crate) fn run(command: &Tool) -> Result<ExitCode, Failure> {
    match command {
        Tool::New(args) => {
            output::print(&project::new(args)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Test(args) => test(args),
        Tool::Bench(args) => bench(args),
        Tool::Inspect(args) => {
            let module = load(&args.module)?;
            print(args.json, &module, Module::to_json)?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Rules(args) => rules(args),
        Tool::Validation(args) => validation(args),
    }
}

fn rules(args: &Rules) -> Result<ExitCode, Failure> {
    let schema = schema_of(&args.against)?;
    let compiled = rules::compiled(&args.rules, &args.name, schema.as_ref())?;
    if let Some(path) = &args.output {
        write(path, &compiled.module)?;
    }
    output::print(&compiled.to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, contents).map_err(|error| {
        let sentence = format!("{} can't be written: {error}", path.display());
        Failure::new(Failure::code_of(&error), sentence)
    })
}

fn validation(args: &Validation) -> Result<ExitCode, Failure> {
    let schema = schema::load(&args.files)?;
    let made = tollgate_policy_rules::validation(&schema, &args.service);
    let made = made.map_err(Failure::input)?;
    let unchecked = made.unchecked.iter().map(|one| match one.place.as_str() {
        "" => format!("{}: {}", one.constraint, one.reason),
        place => format!("{place}: {}: {}", one.constraint, one.reason),
    });
    let unchecked: Vec<_> = unchecked
        .map(|line: String| plain(&line).into_owned())
        .collect();
    if !args.partial && !unchecked.is_empty() {
        let sentence = match unchecked.len() {
            1 => "rules can't check a constraint of the schema".to_owned(),
            count => format!("rules can't check {count} constraints of the schema"),
        };
        let failure = Failure::excerpt(sentence, &unchecked.join("\n"));
        return Err(failure.hint("--partial, which leaves them out"));
    }
    for line in &unchecked {
        warn(&format!("not checked: {line}"));
    }
    if made.checked == 0 {
        return Err(Failure::input(
            "the requests have no constraint that rules can check",
        ));
    }
    match &args.output {
        Some(path) => write(path, made.rules.as_bytes())?,
        None => output::print(&made.rules)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn test(args: &Test) -> Result<ExitCode, Failure> {
    let module = load(&args.module)?;
    let (cases, schema) = cases(&args.cases, &args.protos)?;
    let report = tollgate_policy_tools::test(module.policy(), &schema, &cases).map_err(failure)?;
    print(args.json, &report, tollgate_policy_tools::Report::to_json)?;
    Ok(match report.failed() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(CASES_FAILED),
    })
}

fn bench(args: &Measure) -> Result<ExitCode, Failure> {
    let module = load(&args.module)?;
    let bench = match &args.cases {
        Some(file) => {
            let (cases, schema) = cases(file, &args.protos)?;
            tollgate_policy_tools::bench_cases(&module, &schema, &cases)
        }
        None => {
            let config = args.config.as_deref().map(read).transpose()?;
            let setting = Setting {
                config: config.unwrap_or_default(),
                ..Setting::default()
            };
            tollgate_policy_tools::bench(&module, &setting)
        }
    };
    print(args.json, &bench.map_err(failure)?, Bench::to_json)?;
    Ok(ExitCode::SUCCESS)
}

fn load(path: &Path) -> Result<Module, Failure> {
    Module::load(&read(path)?).map_err(failure)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::file(path, &error))
}

/// The cases, and the schema of all files that define their services.
fn cases(file: &Path, protos: &Protos) -> Result<(Cases, Schema), Failure> {
    let cases = Cases::read(file).map_err(failure)?;
    let proto = [&cases.proto[..], &protos.proto].concat();
    let include = [&cases.include[..], &protos.include].concat();
    if proto.is_empty() {
        let sentence = "the services of the cases have no schema";
        return Err(Failure::input(sentence).hint("--proto FILE.proto"));
    }
    for file in &proto {
        std::fs::metadata(file).map_err(|error| Failure::file(file, &error))?;
    }
    let schema = schema::compiled(&proto, &include)?;
    Ok((cases, schema))
}

fn print<T: std::fmt::Display>(
    json: bool,
    answer: &T,
    to_json: impl Fn(&T) -> serde_json::Value,
) -> Result<(), Failure> {
    output::print(&match json {
        true => output::json(&format_args!("{:#}", to_json(answer))),
        false => answer.to_string(),
    })
}

fn failure(error: ToolError) -> Failure {
    match error {
        ToolError::File { kind, .. } => Failure::new(Failure::code_of(&kind.into()), error),
        ToolError::Internal { .. } => Failure::new(Code::INTERNAL, error),
        _ => Failure::input(error),
    }
}

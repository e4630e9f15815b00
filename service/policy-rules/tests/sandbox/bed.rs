//! Compiles a file of rules, and evaluates messages by its module.

use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tollgate_policy_rules::{Compiled, Options, RulesError, compile};
use tollgate_policy_tools::{Cases, Module, Seen, test};
use tollgate_schema::Schema;

/// The method that most rules are for.
pub(crate) const CALL: &str = "test.Wide/Call";

pub(crate) fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox");
        let none: [&Path; 0] = [];
        Schema::load(&[directory.join("test.proto")], &none).unwrap()
    })
}

/// Compiles with the schema of the tests.
pub(crate) fn compiled(rules: &str) -> Result<Compiled, RulesError> {
    let options = Options {
        name: "rules",
        schema: Some(schema()),
    };
    compile(rules, &options)
}

/// The error of a file, with its place.
pub(crate) fn refused(rules: &str) -> String {
    compiled(rules).unwrap_err().to_string()
}

/// A rule for [`CALL`] with these keys.
pub(crate) fn rule(keys: &str) -> String {
    format!("[[rule]]\nname = \"r\"\nmethods = [\"{CALL}\"]\n{keys}\n")
}

/// A loaded module.
pub(crate) struct Bed {
    module: Module,
}

impl Bed {
    pub(crate) fn new(rules: &str) -> Bed {
        let compiled = compiled(rules).unwrap_or_else(|error| panic!("{error}\n{rules}"));
        Bed {
            module: Module::load(&compiled.module).unwrap(),
        }
    }

    /// The last of one case's verdicts.
    pub(crate) fn ask(&self, request: &Value) -> Seen {
        self.case(&json!({ "request": request }))
    }

    /// The verdict about a request with metadata.
    pub(crate) fn ask_with(&self, request: &Value, metadata: &Value) -> Seen {
        self.case(&json!({ "request": request, "metadata": metadata }))
    }

    /// The verdict about a case of the policy tools.
    pub(crate) fn case(&self, case: &Value) -> Seen {
        self.file(&json!({}), case).0
    }

    /// The verdict, and the changed message as JSON.
    pub(crate) fn file(&self, file: &Value, case: &Value) -> (Seen, Option<String>, Vec<String>) {
        let mut case = case.clone();
        let mut file = file.clone();
        if case.get("method").is_none() {
            case["method"] = json!(CALL);
        }
        case["name"] = json!("case");
        case["expect"] = json!({ "verdict": "allow" });
        file["cases"] = json!([case]);
        let cases = Cases::parse(&file.to_string()).unwrap();
        let report = test(self.module.policy(), schema(), &cases).unwrap();
        let outcome = report.outcomes.into_iter().next().unwrap();
        let log = outcome.log.into_iter().map(|line| line.text);
        (outcome.seen, outcome.changed, log.collect())
    }
}

/// What an expression is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    True,
    False,
    /// An error when it is evaluated, with this reason.
    Error(String),
    /// It isn't compiled, for this reason.
    Refused(String),
}

/// Evaluates a boolean expression about a request with metadata.
pub(crate) fn evaluate(expression: &str, request: &Value, metadata: &Value) -> Is {
    // TOML wants this one escaped, and JSON doesn't.
    let quoted = json!(expression).to_string().replace('\u{7f}', "\\u007f");
    let rules = rule(&format!("when = {quoted}\ndeny = true"));
    let compiled = match compiled(&rules) {
        Ok(compiled) => compiled,
        Err(error) => return Is::Refused(error.reason),
    };
    let module = Module::load(&compiled.module);
    let bed = Bed {
        module: module.unwrap_or_else(|error| panic!("{error}: {expression}")),
    };
    match bed.ask_with(request, metadata) {
        Seen::Allow => Is::False,
        Seen::Deny { message, .. } => match message.split_once("can't be decided: ") {
            Some((_, reason)) => Is::Error(reason.to_owned()),
            None => Is::True,
        },
        other => panic!("{expression}: {other:?}"),
    }
}

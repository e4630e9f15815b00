//! Policies in the layout of OPA's compiler, written as text.

use tollgate_policy_host::compat::{Abi, Body, Description, describe, detect};
use tollgate_policy_host::{
    Capabilities, CompatCall, CompatInstance, CompatVerdict, Fault, Hook, LoadError, Setup, Shown,
    TenantLimits, limits,
};

use crate::guests::HOST;

/// The answers of a module of the interface.
struct Module {
    minor: u32,
    builtins: &'static str,
    /// The body of `opa_eval`: the input is at `$at`, `$len` bytes; it returns the decision's
    /// address.
    eval: &'static str,
    /// Whether a configuration parses.
    parses: bool,
    rest: &'static str,
}

impl Default for Module {
    fn default() -> Module {
        Module {
            minor: 3,
            builtins: "{}",
            eval: "i32.const 512",
            parses: true,
            rest: "",
        }
    }
}

impl Module {
    fn wasm(&self) -> Vec<u8> {
        let Module {
            minor,
            builtins,
            eval,
            parses,
            rest,
        } = self;
        let (builtins, parses) = (builtins.replace('"', "\\22"), u32::from(*parses));
        let text = format!(
            r#"(module
                (import "env" "memory" (memory 2))
                (import "env" "opa_abort" (func $abort (param i32)))
                (import "env" "opa_builtin0" (func $builtin (param i32 i32) (result i32)))
                (global (export "opa_wasm_abi_version") i32 (i32.const 1))
                (global (export "opa_wasm_abi_minor_version") i32 (i32.const {minor}))
                (data (i32.const 64) "{builtins}\00")
                (data (i32.const 256) "{{\22a/allow\22: 0, \22a/decision\22: 4}}\00")
                (data (i32.const 512) "[{{\22result\22: true}}]\00")
                (data (i32.const 640) "[{{\22result\22: false}}]\00")
                (data (i32.const 768) "it hurts\00")
                (func (export "builtins") (result i32) i32.const 64)
                (func (export "entrypoints") (result i32) i32.const 256)
                (func (export "opa_json_dump") (param i32) (result i32) local.get 0)
                (func (export "opa_malloc") (param i32) (result i32) i32.const 2048)
                (func (export "opa_json_parse") (param i32 i32) (result i32) i32.const {parses})
                (func (export "opa_heap_ptr_get") (result i32) i32.const 131000)
                (func (export "opa_eval")
                    (param $x i32) (param $entry i32) (param $data i32) (param $at i32) (param $len i32)
                    (param $heap i32) (param $format i32) (result i32)
                    {eval})
                {rest})"#
        );
        wat::parse_str(text).unwrap()
    }

    fn start(&self) -> Result<CompatInstance, LoadError> {
        self.start_with(&description(), b"{}")
    }

    fn start_with(
        &self,
        description: &Description,
        config: &[u8],
    ) -> Result<CompatInstance, LoadError> {
        let wasm = self.wasm();
        let manifest = description.to_manifest(&wasm)?;
        let policy = HOST.load(&describe(&wasm, &manifest)?)?;
        let limits = TenantLimits::default();
        policy.instantiate_compat(&Setup {
            granted: Capabilities::ALL,
            config: Some(config),
            ..Setup::new(&limits)
        })
    }
}

fn description() -> Description {
    Description {
        abi: None,
        name: "authz".to_owned(),
        hooks: Vec::new(),
        methods: vec!["hotel.Reservation/Reserve".to_owned()],
        fields: vec!["customer_name".to_owned()],
        reply_fields: Vec::new(),
        metadata: vec!["*".to_owned()],
        reply_metadata: Vec::new(),
        metadata_changes: Vec::new(),
        reply_metadata_changes: Vec::new(),
        body: Body::None,
        reply_body: Body::None,
        capabilities: Vec::new(),
        root_id: None,
        entrypoint: None,
    }
}

const CALL: CompatCall<'static> = CompatCall {
    call: 1,
    hook: Hook::Request,
    path: "hotel.Reservation/Reserve",
    metadata: &[],
    message: Shown::Json("{\"customer_name\":\"Ada\"}"),
};

#[test]
fn a_decision_is_made_from_the_input() {
    // It finds the zero byte, which JSON never has, if the input has another length than stated; it
    // allows input that begins with `{`.
    let module = Module {
        eval: r#"
            (if (i32.ne (i32.load8_u (local.get $at)) (i32.const 0x7b)) (then unreachable))
            (if (i32.ne (i32.load8_u (i32.sub (i32.add (local.get $at) (local.get $len)) (i32.const 1))) (i32.const 0x7d))
                (then unreachable))
            (if (i32.ne (local.get $heap) (i32.add (local.get $at) (local.get $len))) (then unreachable))
            (select (i32.const 512) (i32.const 640) (i32.gt_u (local.get $len) (i32.const 110)))"#,
        ..Module::default()
    };
    assert_eq!(detect(&module.wasm()), Ok(Some(Abi::Opa)));
    let mut policy = module.start().unwrap();
    // The input crosses the previous end of memory: the memory has grown.
    assert_eq!(policy.evaluate(&CALL), Ok(CompatVerdict::Allow));
    assert_eq!(policy.evaluate(&CALL), Ok(CompatVerdict::Allow));
    let bare = CompatCall {
        message: Shown::Nothing,
        ..CALL
    };
    assert!(matches!(
        policy.evaluate(&bare),
        Ok(CompatVerdict::Deny { code: 7, .. })
    ));
    assert!(policy.fuel_used() > 0);
}

#[test]
fn the_entrypoint_is_the_one_that_is_named() {
    let module = Module {
        eval: "(if (i32.ne (local.get $entry) (i32.const 4)) (then unreachable)) i32.const 512",
        ..Module::default()
    };
    let named = |name: &str| Description {
        entrypoint: Some(name.to_owned()),
        ..description()
    };
    let mut policy = module.start_with(&named("a/decision"), b"{}").unwrap();
    assert_eq!(policy.evaluate(&CALL), Ok(CompatVerdict::Allow));
    let refused = module.start_with(&named("a/other"), b"{}").unwrap_err();
    let text = "the policy has no entrypoint \"a/other\"; there are a/allow, a/decision";
    assert_eq!(refused.to_string(), text);
}

#[test]
fn a_module_that_is_not_understood_is_refused_before_it_evaluates() {
    let needy = Module {
        builtins: r#"{"http.send": 0, "time.now_ns": 1}"#,
        ..Module::default()
    };
    let text = "the policy needs built-in functions that aren't offered: http.send, time.now_ns";
    assert_eq!(needy.start().unwrap_err().to_string(), text);
    let old = Module {
        minor: 1,
        ..Module::default()
    };
    assert_eq!(
        old.start().unwrap_err(),
        LoadError::OpaVersion { major: 1, minor: 1 }
    );
    let deaf = Module {
        parses: false,
        ..Module::default()
    };
    let refused = deaf.start_with(&description(), b"]").unwrap_err();
    assert!(matches!(refused, LoadError::ConfigRefused(_)));
    let garbled = Module {
        builtins: "[",
        ..Module::default()
    };
    assert!(matches!(
        garbled.start(),
        Err(LoadError::Setup {
            step: "builtins",
            ..
        })
    ));
    let curious = Module {
        rest: r#"(func (export "x"))"#,
        ..Module::default()
    };
    assert!(curious.start().is_ok());
}

#[test]
fn faults_end_it() {
    let fault = |eval: &'static str| {
        let mut policy = Module {
            eval,
            ..Module::default()
        }
        .start()
        .unwrap();
        let fault = policy.evaluate(&CALL).unwrap_err();
        assert!(policy.is_dead());
        assert_eq!(policy.evaluate(&CALL), Err(Fault::Dead));
        fault
    };
    assert_eq!(
        fault("(call $abort (i32.const 768)) i32.const 512"),
        Fault::Trap("it aborted: it hurts".to_owned())
    );
    let builtin = fault("(drop (call $builtin (i32.const 3) (i32.const 0))) i32.const 512");
    assert!(matches!(builtin, Fault::Trap(text) if text.contains("built-in function 3")));
    assert_eq!(
        fault("(loop br 0) unreachable"),
        Fault::OutOfFuel {
            fuel: limits::FUEL_PER_CALL
        }
    );
    for outside in ["i32.const -1", "i32.const 768"] {
        assert!(matches!(fault(outside), Fault::BadAnswer(_)), "{outside}");
    }
    let endless =
        "(memory.fill (i32.const 65536) (i32.const 65) (i32.const 66000)) i32.const 65536";
    assert!(matches!(fault(endless), Fault::BadAnswer(text) if text.contains("no end")));
}

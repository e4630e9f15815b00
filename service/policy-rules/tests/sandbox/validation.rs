//! Constraints of a schema, as rules.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tollgate_policy_rules::{
    Options, Unchecked, Validation, ValidationError, compile, limits, validation,
};
use tollgate_policy_tools::{Cases, Module, Seen, test};
use tollgate_schema::Schema;
use tollgate_shm_abi::status::Code;

/// The schema of a file whose service `s.S` takes a message `M` of this text.
fn schema(text: &str) -> Schema {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("s.proto");
    let head = "syntax = \"proto3\"; package s; import \"buf/validate/validate.proto\";\n\
                import \"google/protobuf/timestamp.proto\"; import \"google/protobuf/wrappers.proto\";\n\
                service S { rpc Call(M) returns (R); rpc Other(M) returns (R); }\nmessage R {}\n";
    std::fs::write(&file, format!("{head}{text}")).unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox/validation");
    let include: [PathBuf; 2] = [place.path().to_owned(), own];
    Schema::load(&[file], &include).unwrap()
}

fn made(schema: &Schema) -> Validation {
    validation(schema, &[]).unwrap()
}

/// The violations of requests; `None`: it is valid.
fn violations(text: &str, requests: &[Value]) -> Vec<Option<String>> {
    let schema = schema(text);
    let made = made(&schema);
    assert_eq!(made.unchecked, [], "{}", made.rules);
    let options = Options {
        name: "validation",
        schema: Some(&schema),
    };
    let compiled = compile(&made.rules, &options);
    let compiled = compiled.unwrap_or_else(|error| panic!("{error}\n{}", made.rules));
    let module = Module::load(&compiled.module).unwrap();
    let cases: Vec<_> = requests
        .iter()
        .map(|request| {
            json!({"name": "one", "method": "s.S/Call", "request": request, "expect": {"verdict": "allow"}})
        })
        .collect();
    let cases = Cases::parse(&json!({ "cases": cases }).to_string()).unwrap();
    let report = test(module.policy(), &schema, &cases).unwrap();
    let seen = report.outcomes.into_iter().map(|case| match case.seen {
        Seen::Allow => None,
        Seen::Deny { code, message } => {
            assert_eq!(code, Code::INVALID_ARGUMENT, "{message}");
            Some(message)
        }
        other => panic!("{other:?}"),
    });
    seen.collect()
}

/// Checks the values of a field of this type with these rules: valid ones, and others with what is
/// said of them.
#[track_caller]
fn field(ty: &str, rules: &str, valid: &[Value], violation: &str, invalid: &[Value]) {
    let text = format!("message M {{ {ty} f = 1 [(buf.validate.field).{rules}]; }}");
    let requests: Vec<_> = valid
        .iter()
        .chain(invalid)
        .map(|f| json!({ "f": f }))
        .collect();
    let found = violations(&text, &requests);
    for (at, (found, request)) in found.iter().zip(&requests).enumerate() {
        let expected = (at >= valid.len()).then(|| format!("f: {violation}"));
        assert_eq!(*found, expected, "{ty} {rules}: {request}");
    }
}

fn texts(texts: &[&str]) -> Vec<Value> {
    texts.iter().map(|text| json!(text)).collect()
}

#[test]
fn texts_have_lengths_and_parts() {
    let check = |rules: &str, valid: &[&str], violation: &str, invalid: &[&str]| {
        field("string", rules, &texts(valid), violation, &texts(invalid));
    };
    check(
        "string.min_len = 2",
        &["ab", "äö"],
        "must be at least 2 characters [string.min_len]",
        &["", "a", "ä"],
    );
    check(
        "string.max_len = 2",
        &["", "äö"],
        "must be at most 2 characters [string.max_len]",
        &["abc"],
    );
    check(
        "string.len = 2",
        &["äö"],
        "must be 2 characters [string.len]",
        &["", "abc"],
    );
    check(
        "string.min_bytes = 3",
        &["abc", "äö"],
        "must be at least 3 bytes [string.min_bytes]",
        &["ab", "ä"],
    );
    check(
        "string.max_bytes = 3",
        &["abc", "ä"],
        "must be at most 3 bytes [string.max_bytes]",
        &["äö"],
    );
    check(
        "string.len_bytes = 4",
        &["äö"],
        "must be 4 bytes [string.len_bytes]",
        &["abc"],
    );
    check(
        "string.const = \"it's\"",
        &["it's"],
        r"must equal 'it\'s' [string.const]",
        &["", "its"],
    );
    check(
        "string.pattern = \"^a\\\\.b$\"",
        &["a.b"],
        r"must match the pattern '^a\\.b$' [string.pattern]",
        &["axb"],
    );
    check(
        "string.prefix = \"ab\"",
        &["abc"],
        "must begin with 'ab' [string.prefix]",
        &["cab"],
    );
    check(
        "string.suffix = \"ab\"",
        &["cab"],
        "must end with 'ab' [string.suffix]",
        &["abc"],
    );
    check(
        "string.contains = \"b\"",
        &["abc"],
        "must contain 'b' [string.contains]",
        &["ac"],
    );
    check(
        "string.not_contains = \"b\"",
        &["ac"],
        "must not contain 'b' [string.not_contains]",
        &["abc"],
    );
    check(
        "string = {in: [\"a\", \"b\"]}",
        &["a", "b"],
        "must be in list ['a', 'b'] [string.in]",
        &["", "c"],
    );
    check(
        "string = {not_in: [\"a\"]}",
        &["", "b"],
        "must not be in list ['a'] [string.not_in]",
        &["a"],
    );
}

#[test]
fn texts_have_forms() {
    let check = |rules: &str, valid: &[&str], violation: &str, invalid: &[&str]| {
        field("string", rules, &texts(valid), violation, &texts(invalid));
    };
    let long = format!("{}.com", "a".repeat(64));
    check(
        "string.email = true",
        &["a@b", "ada.l+x@mail.example.com"],
        "must be an email address [string.email]",
        &[
            "",
            "a",
            "a@",
            "@b",
            "a@-b",
            "a b@c",
            "a@b..c",
            &format!("a@{long}"),
        ],
    );
    let whole = format!("{}com", "abcdefgh.".repeat(28));
    check(
        "string.hostname = true",
        &[
            "a",
            "example.com",
            "example.com.",
            "1.a",
            "a-b.c",
            &whole[5..],
        ],
        "must be a hostname [string.hostname]",
        &[
            "",
            ".",
            "-a.b",
            "a-.b",
            "a..b",
            "127.0.0.1",
            "a.1",
            "a.1.",
            "a_b",
            &long,
            &whole,
        ],
    );
    check(
        "string.ipv4 = true",
        &["0.0.0.0", "255.249.199.9"],
        "must be an IPv4 address [string.ipv4]",
        &["", "256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5", "::1"],
    );
    check(
        "string.uuid = true",
        &["00112233-4455-6677-8899-aAbBcCdDeEfF"],
        "must be a UUID [string.uuid]",
        &[
            "",
            "00112233445566778899aabbccddeeff",
            "00112233-4455-6677-8899-aabbccddeefg",
        ],
    );
    check(
        "string.tuuid = true",
        &["00112233445566778899aabbccddeeff"],
        "must be a UUID without dashes [string.tuuid]",
        &["00112233-4455-6677-8899-aabbccddeeff"],
    );
    check(
        "string.ulid = true",
        &["01ARZ3NDEKTSV4RRFFQ69G5FAV"],
        "must be a ULID [string.ulid]",
        &["81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAU"],
    );
    check(
        "string.well_known_regex = KNOWN_REGEX_HTTP_HEADER_NAME",
        &["x-a", ":path", "a,b"],
        "must be a valid HTTP header name [string.well_known_regex]",
        &["", "a b", "a\u{0}", "ä"],
    );
    check(
        "string = {well_known_regex: KNOWN_REGEX_HTTP_HEADER_VALUE, strict: false}",
        &["", "a\u{1}b ä"],
        "must be a valid HTTP header value [string.well_known_regex]",
        &["a\nb", "a\u{0}"],
    );
}

#[test]
fn numbers_have_bounds() {
    let check = |ty: &str, rules: &str, valid: &[f64], violation: &str, invalid: &[f64]| {
        let values = |numbers: &[f64]| -> Vec<Value> {
            let number = |number: &f64| match ty {
                "double" => json!(number),
                _ => json!(*number as i64),
            };
            numbers.iter().map(number).collect()
        };
        field(ty, rules, &values(valid), violation, &values(invalid));
    };
    check(
        "int32",
        "int32.const = -5",
        &[-5.0],
        "must equal -5 [int32.const]",
        &[0.0, 5.0],
    );
    check(
        "int32",
        "int32.lt = 3",
        &[-1.0, 2.0],
        "must be less than 3 [int32.lt]",
        &[3.0],
    );
    check(
        "int32",
        "int32.lte = 3",
        &[3.0],
        "must be less than or equal to 3 [int32.lte]",
        &[4.0],
    );
    check(
        "int32",
        "int32.gt = 3",
        &[4.0],
        "must be greater than 3 [int32.gt]",
        &[0.0, 3.0],
    );
    check(
        "int32",
        "int32.gte = -2147483648",
        &[-2147483648.0],
        "",
        &[],
    );
    check(
        "int32",
        "int32 = {gt: 0, lte: 9}",
        &[1.0, 9.0],
        "must be greater than 0 and less than or equal to 9 [int32.gt]",
        &[0.0, 10.0],
    );
    // A lower bound above the upper one excludes what is between them.
    check(
        "int32",
        "int32 = {gte: 9, lt: 3}",
        &[2.0, 9.0],
        "must be greater than or equal to 9 or less than 3 [int32.gte]",
        &[3.0, 8.0],
    );
    check(
        "int32",
        "int32 = {in: [1, -2]}",
        &[1.0, -2.0],
        "must be in list [1, -2] [int32.in]",
        &[0.0],
    );
    check(
        "int32",
        "int32 = {not_in: [1], example: 7}",
        &[0.0],
        "must not be in list [1] [int32.not_in]",
        &[1.0],
    );
    check(
        "uint64",
        "uint64.lt = 3",
        &[2.0],
        "must be less than 3 [uint64.lt]",
        &[3.0],
    );
    check(
        "uint64",
        "uint64 = {in: [3]}",
        &[3.0],
        "must be in list [3] [uint64.in]",
        &[4.0],
    );
    check(
        "double",
        "double = {gt: 0.5, lt: 1e9}",
        &[0.6],
        "must be greater than 0.5 and less than 1000000000.0 [double.gt]",
        &[0.5, 1e9],
    );
    let infinite = [json!("NaN"), json!("Infinity"), json!("-Infinity")];
    field(
        "double",
        "double.finite = true",
        &[json!(1e308)],
        "must be finite [double.finite]",
        &infinite,
    );
    let (yes, no) = ([json!(true)], [json!(false)]);
    field(
        "bool",
        "bool.const = true",
        &yes,
        "must equal true [bool.const]",
        &no,
    );
}

#[test]
fn bytes_and_enums_have_constraints() {
    let (two, three) = ([json!("AAE=")], [json!("AAEC"), json!("")]);
    field(
        "bytes",
        "bytes.len = 2",
        &two,
        "must be 2 bytes [bytes.len]",
        &three,
    );
    field(
        "bytes",
        "bytes.const = \"\\x00\\x01\"",
        &two,
        r"must equal b'\x00\x01' [bytes.const]",
        &three,
    );
    let enumeration =
        "enum E { A = 0; B = 1; C = 5; } message M { E f = 1 [(buf.validate.field).enum";
    let requests = [json!({"f": 0}), json!({"f": 5}), json!({"f": 3})];
    let found = violations(
        &format!("{enumeration}.defined_only = true]; }}"),
        &requests,
    );
    let violation = "f: must be one of the defined enum values [enum.defined_only]";
    assert_eq!(found, [None, None, Some(violation.to_owned())]);
    let found = violations(
        &format!("{enumeration} = {{not_in: [0], in: [1, 5]}}]; }}"),
        &requests,
    );
    assert!(
        found[0].is_some() && found[1].is_none() && found[2].is_some(),
        "{found:?}"
    );
}

#[test]
fn presence_decides_what_is_checked() {
    let text = r#"
        message M {
            string implicit = 1 [(buf.validate.field).string.min_len = 2];
            optional string explicit = 2 [(buf.validate.field).string.min_len = 2];
            string unless_zero = 3 [(buf.validate.field) = {ignore: IGNORE_IF_ZERO_VALUE, string: {min_len: 2}}];
            optional string set_unless_zero = 4 [(buf.validate.field) = {ignore: IGNORE_IF_ZERO_VALUE, string: {min_len: 2}}];
            string ignored = 5 [(buf.validate.field) = {ignore: IGNORE_ALWAYS, string: {min_len: 2}}];
            google.protobuf.StringValue wrapped = 6 [(buf.validate.field).string.min_len = 2];
            oneof choice {
                string one = 7 [(buf.validate.field).string.min_len = 2];
                string two = 8;
            }
        }"#;
    let with = |name: &str, value: &str| {
        let mut request = json!({ "implicit": "ab" });
        request[name] = json!(value);
        request
    };
    let requests = [
        with("implicit", "ab"),
        with("implicit", ""),
        with("explicit", ""),
        with("unless_zero", ""),
        with("unless_zero", "a"),
        with("set_unless_zero", ""),
        with("set_unless_zero", "a"),
        with("ignored", "a"),
        with("wrapped", ""),
        with("wrapped", "ab"),
        with("one", "a"),
        with("two", "a"),
    ];
    let places: Vec<_> = violations(text, &requests)
        .into_iter()
        .map(|found| found.map(|text| text.split(':').next().unwrap_or_default().to_owned()))
        .collect();
    let expected = [
        None,
        Some("implicit"),
        Some("explicit"),
        None,
        Some("unless_zero"),
        Some("set_unless_zero"),
        Some("set_unless_zero"),
        None,
        Some("wrapped"),
        None,
        Some("one"),
        None,
    ];
    assert_eq!(places, expected.map(|place| place.map(str::to_owned)));
}

#[test]
fn fields_and_oneofs_may_be_required() {
    let text = r#"
        message M {
            Inner inner = 1 [(buf.validate.field).required = true];
            int32 number = 2 [(buf.validate.field).required = true];
            oneof choice { option (buf.validate.oneof).required = true; string a = 3; int32 b = 4; }
        }
        message Inner { string x = 1; }"#;
    let whole = json!({"inner": {}, "number": 1, "b": 0});
    let without = |name: &str| {
        let mut request = whole.clone();
        request.as_object_mut().unwrap().remove(name);
        request
    };
    let requests = [
        whole.clone(),
        without("inner"),
        without("number"),
        without("b"),
    ];
    let violation = |text: &str| Some(text.to_owned());
    let expected = [
        None,
        violation("inner: value is required [required]"),
        violation("number: value is required [required]"),
        violation("choice: exactly one field is required in oneof [required]"),
    ];
    assert_eq!(violations(text, &requests), expected);
}

#[test]
fn messages_inside_are_checked_where_they_are() {
    let text = r#"
        message M { Inner inner = 1; }
        message Inner {
            option (buf.validate.message).cel = {id: "both", message: "x needs y", expression: "this.x == '' || this.y > 0"};
            string x = 1 [(buf.validate.field).string.max_len = 3];
            int32 y = 2 [(buf.validate.field).int32.gte = 0];
            Deep deep = 3;
        }
        message Deep { string z = 1 [(buf.validate.field).string.min_len = 1]; }"#;
    let requests = [
        json!({}),
        json!({"inner": {}}),
        json!({"inner": {"x": "abcd", "y": 1}}),
        json!({"inner": {"x": "a"}}),
        json!({"inner": {"y": -1}}),
        json!({"inner": {"deep": {}}}),
        json!({"inner": {"deep": {"z": "z"}}}),
    ];
    let violation = |text: &str| Some(text.to_owned());
    let expected = [
        None,
        None,
        violation("inner.x: must be at most 3 characters [string.max_len]"),
        violation("inner: x needs y [both]"),
        violation("inner.y: must be greater than or equal to 0 [int32.gte]"),
        violation("inner.deep.z: must be at least 1 characters [string.min_len]"),
        None,
    ];
    assert_eq!(violations(text, &requests), expected);
}

#[test]
fn custom_constraints_are_true_or_an_empty_text() {
    let text = r#"
        message M {
            option (buf.validate.message) = {
                cel: {id: "order", expression: "this.from <= this.to ? '' : 'from is after to'"}
                cel: {id: "this", message: "not 'this'", expression: "this.name != 'this'"}
                oneof: {fields: ["a", "b"], required: true}
            };
            int32 from = 1; int32 to = 2;
            string name = 3 [(buf.validate.field).cel = {id: "even", message: "its length is even", expression: "size(this) % 2 == 0"}];
            string a = 4; optional int32 b = 5;
        }"#;
    let requests = [
        json!({"to": 1, "a": "x"}),
        json!({"from": 2, "to": 1, "a": "x"}),
        json!({"name": "this", "a": "x"}),
        json!({"name": "odd", "a": "x"}),
        json!({"name": "even", "a": "x", "b": 0}),
        json!({"name": "even"}),
        json!({"name": "even", "b": 0}),
    ];
    let violation = |text: &str| Some(text.to_owned());
    let expected = [
        None,
        violation("from is after to [order]"),
        violation("not 'this' [this]"),
        violation("name: its length is even [even]"),
        violation("one of a, b must be set [message.oneof]"),
        violation("one of a, b must be set [message.oneof]"),
        None,
    ];
    assert_eq!(violations(text, &requests), expected);
}

#[test]
fn what_rules_cannot_check_is_named() {
    let schema = schema(
        r#"
        message M {
            repeated string tags = 1 [(buf.validate.field).repeated = {min_items: 1, items: {string: {min_len: 1}}}];
            map<string, Inner> inners = 2;
            string link = 3 [(buf.validate.field).string.uri = true];
            google.protobuf.Timestamp at = 4 [(buf.validate.field).timestamp.gt_now = true];
            string list = 5 [(buf.validate.field).cel = {id: "c", expression: "this.split(',').all(x, x != '')"}];
            M again = 6;
            bytes raw = 7 [(buf.validate.field).bytes.prefix = "x"];
            int32 fine = 8 [(buf.validate.field).int32.gt = 0];
            int32 predefined = 9 [(buf.validate.field).int32.(s.even) = true];
        }
        message Inner { string x = 1 [(buf.validate.field).string.min_len = 1]; }
        extend buf.validate.Int32Rules { optional bool even = 1161; }"#,
    );
    let made = made(&schema);
    assert_eq!(made.checked, 1, "{}", made.rules);
    let named: Vec<_> = made
        .unchecked
        .iter()
        .map(|one: &Unchecked| {
            (
                one.place.as_str(),
                one.constraint.as_str(),
                one.reason.as_str(),
            )
        })
        .collect();
    let singular = "policies are shown singular fields only";
    assert!(
        named.contains(&("tags", "repeated.min_items, repeated.items", singular)),
        "{named:?}"
    );
    assert!(
        named.contains(&("inners", "the constraints of its items", singular)),
        "{named:?}"
    );
    for (place, constraint, words) in [
        ("link", "string.uri", "rules have no function"),
        (
            "at",
            "timestamp.gt_now",
            "rules have no constraints of this type",
        ),
        ("list", "c", "a list is expected here"),
        ("again", "the constraints of s.M", "contains itself"),
        (
            "raw",
            "bytes.prefix",
            "rules have no such function of bytes",
        ),
        ("predefined", "int32.(s.even)", "no predefined constraints"),
    ] {
        let is_it = |one: &&(&str, &str, &str)| one.0 == place && one.1 == constraint;
        let found = named.iter().find(is_it);
        assert!(
            found.is_some_and(|one| one.2.contains(words)),
            "{place}: {named:?}"
        );
    }
    assert_eq!(named.len(), 8, "{named:?}");
}

#[test]
fn services_are_chosen_and_methods_share_rules() {
    let schema = schema("message M { string f = 1 [(buf.validate.field).string.min_len = 1]; }");
    let made = made(&schema);
    assert!(
        made.rules
            .contains(r#"methods = ["s.S/Call", "s.S/Other"]"#),
        "{}",
        made.rules
    );
    assert_eq!(validation(&schema, &["s.S".to_owned()]), Ok(made));
    let refused = validation(&schema, &["s.T".to_owned()]).unwrap_err();
    assert_eq!(refused.to_string(), "the schema has no service \"s.T\"");
    let refused = validation(crate::bed::schema(), &[]);
    assert_eq!(refused, Err(ValidationError::NoConstraints));
}

#[test]
fn more_constraints_than_a_module_has_room_for_are_refused() {
    let constrained = |count: usize| -> String {
        let field =
            |at| format!("string f{at} = {at} [(buf.validate.field).string.min_len = 1];\n");
        (1..=count).map(field).collect()
    };
    for (count, expected) in [
        (limits::FIELDS, None),
        (
            limits::FIELDS + 1,
            Some("read more than 32 fields of a message"),
        ),
        (
            limits::RULES + 1,
            Some("the file has 257 rules; the limit is 256"),
        ),
    ] {
        let made = validation(
            &schema(&format!("message M {{ {} }}", constrained(count))),
            &[],
        );
        match (made, expected) {
            (Ok(made), None) => assert_eq!(made.checked, count),
            (Err(error), Some(words)) => {
                let sentence =
                    format!("the rules of {count} constraints are too much for one module: ");
                let text = error.to_string();
                assert!(
                    text.starts_with(&sentence) && text.contains(words),
                    "{text}"
                );
            }
            (made, _) => panic!("{count}: {made:?}"),
        }
    }
}

#[test]
fn streams_of_requests_are_named() {
    let schema = schema(
        "service T { rpc Up(stream M) returns (R); rpc Free(stream R) returns (R); rpc Down(M) returns (stream R); }
        message M { string f = 1 [(buf.validate.field).string.min_len = 1]; }",
    );
    let made = validation(&schema, &["s.T".to_owned()]).unwrap();
    assert!(
        made.rules.contains(r#"methods = ["s.T/Down"]"#),
        "{}",
        made.rules
    );
    let places: Vec<_> = made
        .unchecked
        .iter()
        .map(|one| one.place.as_str())
        .collect();
    assert_eq!(places, ["s.T/Up"]);
}

/// Messages that contain the next one twice: a path for each way through them.
#[test]
fn paths_without_end_are_refused_at_once() {
    let levels: String = (0..30)
        .map(|at| format!("message L{at} {{ L{0} a = 1; L{0} b = 2; }}\n", at + 1))
        .collect();
    let last = "message L30 { string f = 1 [(buf.validate.field).string.min_len = 1]; }";
    let text = format!("message M {{ L0 l = 1; }} {levels} {last}");
    let refused = validation(&schema(&text), &[]).unwrap_err().to_string();
    assert!(refused.contains("at most 1024 are looked at"), "{refused}");
    // As many without a constraint below aren't walked.
    let text = format!(
        "message M {{ L0 l = 1; string f = 2 [(buf.validate.field).string.min_len = 1]; }} {levels} message L30 {{}}"
    );
    assert_eq!(made(&schema(&text)).checked, 1);
}

#[test]
fn constraints_may_have_the_same_name() {
    let text = r#"
        message M {
            option (buf.validate.message) = {
                cel: {id: "x", expression: "this.n != 1"} cel: {id: "x", expression: "this.n != 2"}
                cel: {id: "x 2", expression: "this.n != 3"} cel: {id: "errors", expression: "this.n != 4 // a comment"}
            };
            int32 n = 1;
        }"#;
    let requests: Vec<_> = (0..5).map(|n| json!({ "n": n })).collect();
    let named =
        ["x", "x", "x 2", "errors"].map(|id| Some(format!("the constraint isn't met [{id}]")));
    let expected: Vec<_> = [None].into_iter().chain(named).collect();
    assert_eq!(violations(text, &requests), expected);
}

#[test]
fn every_constraint_that_is_not_checked_is_named() {
    let named = |text: &str| -> Vec<(String, String)> {
        let unchecked = made(&schema(text)).unchecked.into_iter();
        unchecked.map(|one| (one.place, one.constraint)).collect()
    };
    let pairs = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        let owned =
            |(place, constraint): &(&str, &str)| ((*place).to_owned(), (*constraint).to_owned());
        all.iter().map(owned).collect()
    };
    assert_eq!(
        named(
            "message M { repeated I i = 1 [(buf.validate.field).repeated.min_items = 1]; } message I { string f = 1 [(buf.validate.field).string.min_len = 1]; }"
        ),
        pairs(&[
            ("i", "repeated.min_items"),
            ("i", "the constraints of its items")
        ])
    );
    assert_eq!(
        named("message M { double d = 1 [(buf.validate.field).double = {gt: -inf, lt: 5}]; }"),
        pairs(&[("d", "double.lt"), ("d", "double.gt")])
    );
    assert_eq!(
        named(
            "message M { option (buf.validate.message).cel = {id: \"x\", expression: \"this.nope\"}; string f = 1; }"
        ),
        pairs(&[("s.M", "x")])
    );
}

#[test]
fn files_of_editions_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("e.proto");
    let text = "edition = \"2023\"; package e; import \"buf/validate/validate.proto\";\n\
                service S { rpc Call(M) returns (M); }\n\
                message M { string f = 1 [(buf.validate.field).string.min_len = 1]; }";
    std::fs::write(&file, text).unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox/validation");
    let schema = Schema::load(&[file], &[place.path().to_owned(), own]).unwrap();
    let refused = validation(&schema, &[]).unwrap_err().to_string();
    assert!(refused.starts_with("e.proto is of an edition"), "{refused}");
}

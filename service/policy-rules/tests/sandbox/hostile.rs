//! Files that are made to hurt: each ends soon, with an error and no panic.

use std::time::{Duration, Instant};

use crate::bed::{Bed, compiled, refused, rule};
use serde_json::json;
use tollgate_policy_rules::limits;
use tollgate_policy_tools::Seen;

/// The error of a file, which comes soon.
fn soon(rules: &str) -> String {
    let start = Instant::now();
    let said = refused(rules);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}: {said}");
    said
}

fn when(expression: &str) -> String {
    rule(&format!("when = {}\ndeny = true", json!(expression)))
}

#[test]
fn long_files_and_many_rules_are_refused() {
    let said = soon(&"# x\n".repeat(10 << 18));
    assert_eq!(
        said,
        "line 1, column 1: the file has 10485760 bytes; the limit is 262144"
    );
    let one = |at: usize| rule("deny = true").replace("\"r\"", &format!("\"r{at}\""));
    let most: String = (0..limits::RULES).map(one).collect();
    assert!(compiled(&most).is_ok());
    let said = soon(&(most + &one(limits::RULES)));
    assert!(
        said.ends_with("the file has 257 rules; the limit is 256"),
        "{said}"
    );
    let said = soon(&format!("a = {}", "[".repeat(200_000)));
    assert!(said.contains("no TOML"), "{said}");
}

#[test]
fn deep_and_long_expressions_are_refused() {
    let deep = |open: &str, middle: &str, close: &str, times: usize| {
        format!("{}{middle}{}", open.repeat(times), close.repeat(times))
    };
    let nested = "nested too deeply";
    for expression in [
        deep("(", "true", ")", 1000),
        deep("[", "1", "]", 1000),
        deep("[1].all(x, ", "true", ")", 200),
        deep("[1].all(x, ", "true", ")", limits::NESTING),
        format!("{}true", "true ? ".repeat(500)),
        format!("1{} == 1", " + 1".repeat(1000)),
        format!("request{}", ".inner".repeat(600)),
        deep("size(", "''", ")", 400),
        "(".repeat(4096),
        "{".repeat(4096),
    ] {
        let said = soon(&when(&expression));
        assert!(said.contains(nested) || said.contains("no CEL"), "{said}");
    }
    let long = when(&"a".repeat(4097));
    assert!(soon(&long).contains("the expression has 4097 bytes; the limit is 4096"));
    let many = when(&format!(
        "[{}1].exists(x, [{}1].exists(y, x == y))",
        "1,".repeat(99),
        "1,".repeat(99)
    ));
    assert!(
        soon(&many).contains("with its macros unrolled, the expression has more than 4096 parts")
    );
    let powers = "[1,2].all(x, ".repeat(20) + "true" + &")".repeat(20);
    assert!(soon(&when(&powers)).contains("more than 4096 parts"));
}

#[test]
fn bytes_that_are_no_expression_do_not_panic() {
    let mut random = fastrand::Rng::with_seed(7);
    let words = [
        "request",
        ".",
        "s",
        "(",
        ")",
        "[",
        "]",
        "'a",
        "'",
        "\"",
        "\\",
        "&&",
        "||",
        "?",
        ":",
        "1",
        "u",
        "ü",
        "\n",
        "in",
        "has",
        "{",
        "}",
        "-",
        "!",
        "==",
        ".5e",
        "0x",
        "b'",
        "\u{0}",
        "`",
        "exists(x,",
        "r'",
        ",",
        "@in",
        "_+_",
    ];
    for _ in 0..400 {
        let count = random.usize(0..30);
        let text: String = (0..count)
            .map(|_| words[random.usize(0..words.len())])
            .collect();
        let _ = compiled(&when(&text));
    }
}

#[test]
fn exponential_patterns_are_refused() {
    for pattern in [
        "(a|b)*a(a|b){30}",
        "((a{100}){100}){100}",
        "(x+x+)+y{1000}{1000}",
    ] {
        let said = soon(&when(&format!("request.s.matches('{pattern}')")));
        assert!(said.contains("line 4, column 27: "), "{said}");
    }
    // What other engines need exponential time for.
    let bed = Bed::new(&when("request.s.matches('^(a+)+$')"));
    let start = Instant::now();
    let s = format!("{}!", "a".repeat(5000));
    assert_eq!(bed.ask(&json!({ "s": s })), Seen::Allow);
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn limits_of_lists_fields_and_methods_are_reached() {
    let items = |count: usize| {
        let items: Vec<_> = (0..count).map(|at| format!("'{at}'")).collect();
        format!(
            "lists = {{ all = [{}] }}\n{}",
            items.join(","),
            rule("when = 'request.s in all'\ndeny = true")
        )
    };
    let bed = Bed::new(&items(limits::LIST_ITEMS));
    assert!(matches!(
        bed.ask(&json!({ "s": "8191" })),
        Seen::Deny { .. }
    ));
    assert_eq!(bed.ask(&json!({ "s": "8192" })), Seen::Allow);
    assert!(soon(&items(limits::LIST_ITEMS + 1)).contains("has 8193 values; the limit is 8192"));
    let keys: Vec<_> = (0..17).map(|at| format!("has(metadata.k{at})")).collect();
    let said = soon(&when(&keys.join(" && ")));
    assert!(
        said.contains("the rules of one method read more than 16 metadata keys of a message"),
        "{said}"
    );
    let fields: String = (0..33).map(|at| format!("f{at} = 'bool'\n")).collect();
    let tests: Vec<_> = (0..33).map(|at| format!("request.f{at}")).collect();
    let file = format!(
        "[[rule]]\nname = 'r'\nmethods = ['a.B/C']\nwhen = '{}'\ndeny = true\n[[method]]\nname = 'a.B/C'\n[method.request]\n{fields}",
        tests.join(" && ")
    );
    assert!(soon(&file).contains("read more than 32 fields of a message"));
    let methods: Vec<_> = (0..65).map(|at| format!("'a.B/C{at}'")).collect();
    let file = format!(
        "[[rule]]\nname = 'r'\nmethods = [{}]\ndeny = true\n[[method]]\nname = 'a.B/C0'\n",
        methods.join(",")
    );
    assert!(soon(&file).contains("the rules are for more than 64 methods"));
}

#[test]
fn limits_of_names_texts_and_modules_are_reached() {
    let long = "x".repeat(limits::NAME_BYTES + 1);
    let said = soon(&rule("deny = true").replace("\"r\"", &format!("\"{long}\"")));
    assert!(
        said.contains("the name has 129 bytes; the limit is 128"),
        "{said}"
    );
    let long = "x".repeat(limits::TEXT_BYTES + 1);
    let said = soon(&rule(&format!("deny = {{ text = \"{long}\" }}")));
    assert!(
        said.contains("the text has 4097 bytes; the limit is 4096"),
        "{said}"
    );
    let lists: Vec<_> = (0..65).map(|at| format!("l{at} = []")).collect();
    let lists = lists.join(", ");
    let said = soon(&format!("lists = {{ {lists} }}\n{}", rule("deny = true")));
    assert!(
        said.contains("there are 65 lists; the limit is 64"),
        "{said}"
    );
    let list = |name: &str| {
        let items: Vec<_> = (0..limits::LIST_ITEMS)
            .map(|at| format!("'{name}{at}'"))
            .collect();
        format!("{name} = [{}]\n", items.join(","))
    };
    let file = format!(
        "[lists]\n{}{}{}{}",
        list("a"),
        list("b"),
        list("c"),
        rule("when = 'request.s in a || request.s in b || request.s in c'\ndeny = true")
    );
    let said = soon(&file);
    assert!(
        said.contains("bytes of constants; the limit is 524288"),
        "{said}"
    );
    let methods: Vec<_> = (0..limits::METHODS)
        .map(|at| format!("'a.B/C{at}'"))
        .collect();
    let one = |at: usize| {
        format!(
            "[[rule]]\nname = 'r{at}'\nwhen = \"metadata.k == '{at}' || metadata.k == 'x{at}'\"\ndeny = true\n"
        )
    };
    let rules: String = (0..limits::RULES).map(one).collect();
    let declared = "[[method]]\nname = 'a.B/C0'\n";
    let said = soon(&format!(
        "methods = [{}]\n{declared}{rules}",
        methods.join(",")
    ));
    assert!(said.contains("bytes; the limit is 1048576"), "{said}");
}

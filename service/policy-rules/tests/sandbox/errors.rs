//! Errors: each has its place, what was found, and what would do.

use crate::bed::{refused, rule};

fn check(rules: &str, expected: &str) {
    let said = refused(rules);
    assert!(said.starts_with(expected), "{said}\n{rules}");
}

#[test]
fn keys_and_values_of_the_file_are_checked() {
    check("", "line 1, column 1: the file has no [[rule]]");
    check(
        "rule = 1",
        "line 1, column 8: [[rule]] is an array, not an integer",
    );
    check("[[rule]", "line 1, column 8: no TOML: ");
    check(
        "[[rul]]\n",
        "line 1, column 3: a file of rules has no key \"rul\"; there are name, version, methods, name_rules, lists, method, rule; did you mean \"rule\"?",
    );
    check(
        "[[rule]]\nmethods = [\"*\"]\ndeny = true",
        "line 2, column 1: the rule has no name",
    );
    check(
        "[[rule]]\nname = \"r\"\ndeny = true",
        "line 2, column 1: the rule names no methods; write",
    );
    check(
        &rule(""),
        "line 2, column 1: the rule does nothing; it needs one of deny, allow, ",
    );
    check(
        &rule("whne = 'true'\ndeny = true"),
        "line 4, column 1: a rule has no key \"whne\"; there are name, ",
    );
    check(
        &rule("deny = 'DENIED'"),
        "line 4, column 8: \"DENIED\" is no status of a denial; there are CANCELLED, ",
    );
    check(
        &rule("deny = 'OK'"),
        "line 4, column 8: \"OK\" is no status",
    );
    check(
        &rule("deny = 1"),
        "line 4, column 8: deny is true, a status",
    );
    check(
        &rule("deny = true\npriority = 1"),
        "line 4, column 8: a denied call can't be changed",
    );
    check(
        &rule("deny = true\nallow = true"),
        "line 4, column 8: a rule can't both allow and deny",
    );
    check(
        &rule("priority = 8"),
        "line 4, column 12: priority is 8; 0 to 7 are allowed",
    );
    check(
        &rule("delay_ms = 1001"),
        "line 4, column 12: delay_ms is 1001; 0 to 1000 are allowed",
    );
    check(
        &rule("hook = 'reqest'\ndeny = true"),
        "line 4, column 8: hook \"reqest\" is neither request nor reply",
    );
    check(
        &rule("on_error = 'allow'\ndeny = true"),
        "line 4, column 12: on_error \"allow\" is neither deny nor skip",
    );
    check(
        &rule("deny = true").replace("\"r\"", "\"errors\""),
        "line 2, column 8: the name \"errors\" is that of the counter of errors",
    );
    check(
        &rule("rate_limit = 1"),
        "line 4, column 14: rate_limit is a table, not an integer",
    );
    check(
        &rule("route = 'Blue'"),
        "line 4, column 9: route \"Blue\" isn't 1 to 64 of",
    );
    check(
        &rule("set_metadata = { 'tollgate-x' = 'a' }"),
        "line 4, column 18: metadata key \"tollgate-x\" is the daemon's own",
    );
    check(
        &rule("set_metadata = { a = \"\\u00fc\" }"),
        "line 4, column 22: the value of a: ",
    );
    check(
        &rule("remove_metadata = ['A']"),
        "line 4, column 20: metadata key \"A\": ",
    );
    check(
        &rule("log = { cell = 'a' }"),
        "line 4, column 9: a computed value has no key \"cell\"; there are cel; did you mean \"cel\"?",
    );
    let twice = format!("{}{}", rule("deny = true"), rule("deny = true"));
    check(&twice, "line 6, column 1: line 2 has a rule \"r\", too");
    check(
        &format!("lists = {{ now = ['a'] }}\n{}", rule("deny = true")),
        "line 1, column 11: list \"now\": expressions have this name already",
    );
    check(
        &format!("lists = {{ a = ['a', 1] }}\n{}", rule("deny = true")),
        "line 1, column 15: the values of list \"a\" are neither all texts nor all integers",
    );
    check(
        "[[rule]]\nname = 'r'\nmethods = ['a.b.c']\ndeny = true",
        "line 3, column 12: method \"a.b.c\" isn't package.Service/Method",
    );
}

#[test]
fn expressions_have_their_places_in_the_file() {
    check(
        &rule("when = \"request.s == 'a' && request.nmae == 'b'\"\ndeny = true"),
        "line 4, column 37: test.All has no field \"nmae\"; ",
    );
    check(
        &rule("when = '''\n  request.s == \"ü\" &&\n    request.nmae == \"b\"\n'''\ndeny = true"),
        "line 6, column 13: test.All has no field \"nmae\"; ",
    );
    check(
        &rule("when = \"request.t == \\\"\\u00fc\\\" && request.nmae == 'b'\"\ndeny = true"),
        "line 4, column 44: test.All has no field",
    );
    check(
        &rule("when = \"request.s.startswith('b')\"\ndeny = true"),
        "line 4, column 19: no function is named \"startswith\"; ",
    );
    check(
        &rule("when = \"request.s == 'a' )\"\ndeny = true"),
        "line 4, column 26: no CEL: extraneous input ')'",
    );
    check(
        &rule("when = 'true'\ndeny = { text = { cel = 'request.i32' } }"),
        "line 5, column 33: a text is a string; this is an int",
    );
    check(
        &rule("set_fields = { i32 = 'a' }"),
        "line 4, column 16: a value of i32 is an int",
    );
    check(
        &rule("set_fields = { i32 = 2147483648 }"),
        "line 4, column 16: the new value doesn't fit the field i32",
    );
    check(
        &rule("set_fields = { many = 'a' }"),
        "line 4, column 16: test.All.many is repeated",
    );
    check(
        &rule("set_fields = { inner = 'a' }"),
        "line 4, column 16: inner is a message; name one of its fields",
    );
    check(
        &rule("set_fields = { only.a = 'a' }"),
        "line 4, column 21: only may be absent, and no field in it tells",
    );
    check(
        &rule("when = 'true'\nclear_fields = ['nothing']"),
        "line 5, column 17: test.All has no field \"nothing\"",
    );
}

#[test]
fn methods_are_those_of_the_schema() {
    let of = |method: &str| {
        format!(
            "[[rule]]\nname = 'r'\nmethods = ['{method}']\nwhen = 'request.i32 == 1'\ndeny = true"
        )
    };
    check(
        &of("test.Wide/Cal"),
        "line 3, column 12: service test.Wide has no method \"Cal\"; it has Call, Other, Old; did you mean \"Call\"?",
    );
    check(&of("test.Wid/Call"), "line 3, column 12: ");
    check(
        &of("test.Wide/*"),
        "line 4, column 17: test.Legacy has no field \"i32\"",
    );
    check(
        &of("*"),
        "line 3, column 12: a rule for * knows neither fields nor the method",
    );
}

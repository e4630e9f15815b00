//! Expressions: their values, their errors, and what is refused.

use serde_json::{Value, json};
use tollgate_policy_tools::Seen;

use crate::bed::{Bed, Is, evaluate, rule};

fn request() -> Value {
    json!({
        "b": true, "i32": -7, "i64": "9223372036854775807", "u32": 7, "u64": "18446744073709551615",
        "f": 1.5, "d": 2.5, "s": "Mallory", "t": "grüße", "raw": "AAH/", "color": "RED",
        "inner": { "name": "in", "level": 3 }, "count": "0", "right": 4,
    })
}

fn metadata() -> Value {
    json!({ "role": "admin", "tag": ["a", "b", "c"], "level": "42", "x-bin": "00ff" })
}

fn check(expression: &str, expected: Is) {
    assert_eq!(
        evaluate(expression, &request(), &metadata()),
        expected,
        "{expression}"
    );
}

fn all(expected: &Is, expressions: &[&str]) {
    for expression in expressions {
        check(expression, expected.clone());
    }
}

fn errors(reason: &str, expressions: &[&str]) {
    all(&Is::Error(reason.to_owned()), expressions);
}

#[test]
fn fields_of_all_types_have_their_values() {
    all(
        &Is::True,
        &[
            "request.b",
            "request.i32 == -7",
            "request.i64 == 9223372036854775807",
            "request.u32 == 7u",
            "request.u32 == 7",
            "request.u64 == 18446744073709551615u",
            "request.f == 1.5",
            "request.d == 2.5",
            "request.d > 2",
            "request.s == 'Mallory'",
            "request.t == 'grüße'",
            "request.raw == b'\\x00\\x01\\xff'",
            "request.color == test.Color.RED",
            "request.color == 1",
            "request.inner.name == 'in'",
            "request.inner.level == 3",
            "request.inner.inner.name == ''",
            "request.note == ''",
            "request.right == 4",
            "request.left == ''",
        ],
    );
    all(
        &Is::False,
        &[
            "!request.b",
            "request.s == 'mallory'",
            "request.s == 'Mallory '",
            "request.u64 == -1",
            "request.i32 > 0",
        ],
    );
}

#[test]
fn presence_is_what_the_schema_tells() {
    all(
        &Is::True,
        &[
            "has(request.b)",
            "has(request.s)",
            "has(request.inner)",
            "has(request.inner.name)",
            "!has(request.note)",
            "has(request.count)",
            "!has(request.inner.inner)",
            "has(request.right)",
            "!has(request.left)",
            "!has(request.inner.title)",
            "has(metadata.role)",
            "!has(metadata.none)",
            "'role' in metadata",
            "!('none' in metadata)",
        ],
    );
}

#[test]
fn logic_absorbs_errors_as_cel_does() {
    all(
        &Is::True,
        &[
            "true || 1 / 0 == 1",
            "1 / 0 == 1 || true",
            "!(false && 1 / 0 == 1)",
            "!(1 / 0 == 1 && false)",
            "true ? true : 1 / 0 == 1",
            "(1/0 == 1 && false) || request.b",
            "(true || 1/0 == 1) && request.b",
            "[1, 0].exists(x, 1 / x == 1)",
            "!['a', 'b'].all(x, x == 'a' && 1 / 0 > 0)",
            "metadata_values['tag'].exists(v, v == 'b' || 1/0 == 1)",
        ],
    );
    errors(
        "a division by zero",
        &[
            "1 / 0 == 1 && true",
            "true && 1 / 0 == 1",
            "false || 1 / 0 == 1",
            "1 / 0 == 1 || false",
            "1 / 0 == 1 || 1 / 0 == 1",
            "!(1 / 0 == 1)",
            "1 / 0 == 1 ? true : true",
            "5 % 0 == 1",
            "5u / 0u == 1u",
            "[1, 0].all(x, 1 / x == 1)",
            "metadata_values['tag'].exists(v, v == 'x' || 1/0 == 1)",
            "[1, 0].exists_one(x, 1 / x == 1)",
            "metadata_values['tag'].exists_one(v, 1/0 == 1)",
        ],
    );
}

#[test]
fn numbers_overflow_instead_of_wrapping() {
    errors(
        "a number is out of range",
        &[
            "request.i64 + 1 == 0",
            "-9223372036854775808 - 1 == 0",
            "request.i64 * 2 == 0",
            "-9223372036854775808 * -1 == 0",
            "-1 * -9223372036854775808 == 0",
            "-9223372036854775808 / -1 == 0",
            "-9223372036854775808 % -1 == 0",
            "-(-9223372036854775808) == 0",
            "request.u64 + 1u == 0u",
            "0u - 1u == 0u",
            "request.u64 * 2u == 0u",
            "int(request.u64) == 0",
            "uint(request.i32) == 0u",
            "int(1e19) == 0",
            "uint(-1.0) == 0u",
            "int(0.0 / 0.0) == 0",
        ],
    );
    all(
        &Is::True,
        &[
            "request.i64 + -1 == 9223372036854775806",
            "-9223372036854775807 - 1 == -9223372036854775808",
            "3037000499 * 3037000499 > 0",
            "-9223372036854775808 * 1 == -9223372036854775808",
            "7 / -2 == -3",
            "-7 % 2 == -1",
            "7u % 4u == 3u",
            "1.0 / 0.0 > request.d",
            "request.u64 - 1u == 18446744073709551614u",
            "int(-1.9) == -1",
            "uint(1.9) == 1u",
            "double(request.u32) == 7.0",
            "int(3u) == 3",
        ],
    );
}

#[test]
fn numbers_of_different_types_are_compared_by_value() {
    all(
        &Is::True,
        &[
            "request.i32 < request.u32",
            "request.u64 > request.i64",
            "request.i64 < request.u64",
            "request.u32 > request.i32",
            "request.d > request.u32 || request.d < request.u32",
            "request.i32 < request.d",
            "request.d > request.i32",
            "request.u64 > request.d",
            "1 == 1.0",
            "1u == 1",
            "1u == 1.0",
            "2 > 1.5",
            "1.5 < 2u",
            "!(1 == 1.5)",
            "1 != 1.5",
            "request.i64 < 9223372036854775808.0",
            "9223372036854775807 != 9223372036854775808.0",
            "!(0.0/0.0 == 1)",
            "0.0/0.0 != 1",
            "!(0.0/0.0 < 1)",
            "!(1 < 0.0/0.0)",
            "-1 < 0u",
            "0u > -1",
            "18446744073709551615u < 18446744073709551616.0",
            "false < true",
            "1 in [1.0, 2.0]",
        ],
    );
}

#[test]
fn texts_are_compared_searched_and_joined() {
    all(
        &Is::True,
        &[
            "request.s < 'Mallorz'",
            "request.s > 'Mallor'",
            "request.s <= 'Mallory'",
            "'a' < 'b'",
            "'Z' < 'a'",
            "request.s != request.t",
            "request.s.startsWith('Mal')",
            "request.s.endsWith('ory')",
            "request.s.contains('llo')",
            "request.s.contains('')",
            "request.s.startsWith('')",
            "!request.s.startsWith('al')",
            "!request.s.endsWith('Mallory2')",
            "!request.s.contains('lo2')",
            "request.s.startsWith(request.inner.name) || true",
            "size(request.t) == 5",
            "request.t.size() == 5",
            "size(request.raw) == 3",
            "size(b'ü') == 2",
            "request.s + '!' == 'Mallory!'",
            "'a' + request.s + 'b' + request.t == 'aMallorybgrüße'",
            "b'a' + request.raw == b'a\\x00\\x01\\xff'",
            "string(request.i32) == '-7'",
            "string(request.u64) == '18446744073709551615'",
            "string(-9223372036854775808) == '-9223372036854775808'",
            "string(0) == '0'",
            "string(request.b) == 'true'",
            "int('-12') == -12",
            "uint('18446744073709551615') == 18446744073709551615u",
            "int('9223372036854775807') == request.i64",
            "int('-9223372036854775808') < 0",
            "int(metadata.level) > 41",
            "bytes('ü') == b'\\xc3\\xbc'",
            "(request.b ? 'x' : 'y') == 'x'",
            "'0123456789012345678901234567890123456789012345678901234' != request.s",
            "request.s + request.s + request.s + request.s + request.s + request.s + request.s + request.s == 'MalloryMalloryMalloryMalloryMalloryMalloryMalloryMallory'",
        ],
    );
    errors(
        "a text is no number",
        &[
            "int('') == 0",
            "int('-') == 0",
            "int('1x') == 0",
            "int('9223372036854775808') == 0",
            "uint('-1') == 0u",
            "uint('18446744073709551616') == 0u",
            "int('99999999999999999999') == 0",
            "int(request.s) == 0",
        ],
    );
}

#[test]
fn lists_of_constants_are_searched() {
    all(
        &Is::True,
        &[
            "request.s in ['Mallory']",
            "request.s in ['a', 'b', 'Mallory']",
            "request.s in ['a', 'bcd', 'Mallory', 'grüße', 'much longer than sixteen bytes']",
            "'' in ['a', 'b', 'c', 'd', '']",
            "!('x' in ['a', 'b', 'c', 'd', ''])",
            "'much longer than sixteen bytes' in ['a', 'bcd', 'x', 'y', 'much longer than sixteen bytes']",
            "request.i32 in [1, -7]",
            "request.i32 in [9, 8, 7, 6, 5, 4, 3, -7, 1]",
            "!(request.i32 in [9, 8, 7, 6, 5, 4, 3, 2, 1])",
            "request.u32 in [7u]",
            "request.u32 in [1, 7]",
            "!(1 in [])",
            "request.s in [request.t, request.s]",
            "request.raw in [b'a', b'\\x00\\x01\\xff']",
            "size([1, 2, 3]) == 3",
            "[1, 2, 3].size() == 3",
            "['a', 'b'].exists(x, request.s.startsWith(x) || x == 'b')",
            "[1, 2, 3].all(x, x > 0)",
            "[1, 2, 3].exists_one(x, x > 2)",
            "![1, 2, 3].exists_one(x, x > 1)",
            "[].all(x, false)",
            "![].exists(x, true)",
            "[1, 2].all(x, [1, 2].exists(y, x == y))",
            "[1].exists(request, request == 1)",
        ],
    );
}

#[test]
fn who_calls_is_a_text_or_unknown() {
    let bed = |when: &str| Bed::new(&rule(&format!("when = {when:?}\ndeny = true")));
    let caller = json!({"application": "batch", "uid": "1000", "side": "client"});
    for (when, is) in [
        ("caller.application == 'batch'", true),
        (
            "caller.application.startsWith('bat') && int(caller.uid) >= 1000",
            true,
        ),
        ("caller.side == 'server'", false),
        ("has(caller.uid)", true),
        ("has(caller.pid)", false),
        ("caller.uid in ['1', '1000']", true),
    ] {
        // What an application says of itself is nothing.
        let case =
            json!({"request": {}, "caller": caller, "metadata": {"application": "x", "uid": "1"}});
        let seen = bed(when).case(&case);
        assert_eq!(matches!(seen, Seen::Deny { .. }), is, "{when}: {seen:?}");
    }
    let Seen::Deny { message, .. } = bed("caller.pid == '1'").case(&json!({"request": {}})) else {
        panic!("an unknown attribute is an error");
    };
    assert!(message.contains("caller.pid isn't known"), "{message}");
}

#[test]
fn metadata_has_one_value_or_several() {
    all(
        &Is::True,
        &[
            "metadata.role == 'admin'",
            "metadata['role'] == 'admin'",
            "metadata_values['tag'].exists(v, v == 'b')",
            "'c' in metadata_values['tag']",
            "!('d' in metadata_values['tag'])",
            "size(metadata_values['tag']) == 3",
            "metadata_values['tag'].size() == 3",
            "metadata_values['none'].size() == 0",
            "metadata_values['tag'].all(v, v.size() == 1)",
            "metadata_values['tag'].exists_one(v, v > 'b')",
            "!metadata_values['tag'].exists_one(v, v >= 'b')",
            "metadata['x-bin'] == b'\\x00\\xff'",
            "metadata_values['none'].all(v, false)",
            "metadata_values['tag'].exists(a, metadata_values['tag'].exists(b, a < b))",
            "metadata_values['tag'].all(a, a in metadata_values['tag'])",
            "metadata_values['tag'].exists(a, [a, 'z'].all(b, b == a || b == 'z'))",
        ],
    );
    errors(
        "metadata \"none\" is missing",
        &["metadata.none == 'a'", "metadata['none'] != 'a'"],
    );
    errors(
        "metadata \"tag\" has several values",
        &["metadata.tag == 'a'"],
    );
}

#[test]
fn patterns_match_anywhere() {
    all(
        &Is::True,
        &[
            "request.s.matches('^M')",
            "request.s.matches('lor')",
            "matches(request.s, 'y$')",
            "!request.s.matches('^lor')",
            "request.t.matches('^gr.ße$')",
            "request.s.matches('(?i)^mallory$')",
            "request.s.matches('')",
            "''.matches('^$')",
            "request.s.matches('^[A-Z][a-z]{6}$')",
            "!request.s.matches('[0-9]')",
        ],
    );
}

#[test]
fn times_are_those_of_the_calendar() {
    all(
        &Is::True,
        &[
            "timestamp('2024-02-29T13:14:15.123Z').getFullYear() == 2024",
            "timestamp('2024-02-29T13:14:15Z').getMonth() == 1",
            "timestamp('2024-02-29T13:14:15Z').getDate() == 29",
            "timestamp('2024-02-29T13:14:15Z').getDayOfMonth() == 28",
            "timestamp('2024-02-29T13:14:15Z').getDayOfYear() == 59",
            "timestamp('2024-12-31T13:14:15Z').getDayOfYear() == 365",
            "timestamp('2023-12-31T00:00:00Z').getDayOfYear() == 364",
            "timestamp('2023-03-01T00:00:00Z').getDayOfYear() == 59",
            "timestamp('2024-03-01T00:00:00Z').getDayOfYear() == 60",
            "timestamp('2024-01-01T00:00:00Z').getDayOfYear() == 0",
            "timestamp('2024-02-29T13:14:15Z').getDayOfWeek() == 4",
            "timestamp('1969-12-31T23:59:59Z').getDayOfWeek() == 3",
            "timestamp('2024-02-29T13:14:15Z').getHours() == 13",
            "timestamp('2024-02-29T13:14:15Z').getHours('+02:00') == 15",
            "timestamp('1969-12-31T23:59:59Z').getHours() == 23",
            "timestamp('2024-02-29T13:14:15Z').getMinutes() == 14",
            "timestamp('2024-02-29T13:14:15Z').getSeconds() == 15",
            "timestamp('2024-02-29T13:14:15.123Z').getMilliseconds() == 123",
            "timestamp('1900-03-01T00:00:00Z').getMonth() == 2",
            "timestamp('1900-12-31T00:00:00Z').getDayOfYear() == 364",
            "timestamp('0001-01-01T00:00:00Z').getFullYear() == 1",
            "timestamp('2024-02-29T13:14:15Z') + duration('24h') == timestamp('2024-03-01T13:14:15Z')",
            "timestamp('2024-02-29T00:00:00Z') - timestamp('2024-02-28T00:00:00Z') == duration('24h')",
            "duration('1h') > duration('59m')",
            "duration('1h') - duration('30m') == duration('30m')",
            "now >= timestamp('1970-01-01T00:00:00Z')",
            "int(timestamp('1970-01-01T00:01:00Z')) == 60",
            "timestamp(60) == timestamp('1970-01-01T00:01:00Z')",
            "now.getFullYear() == 1970",
        ],
    );
    errors(
        "a number is out of range",
        &[
            "timestamp('9999-12-31T23:59:59Z') + duration('1s') == now",
            "timestamp('0001-01-01T00:00:00Z') - duration('1s') == now",
        ],
    );
}

#[test]
fn the_method_has_its_name() {
    check("method == 'test.Wide/Call'", Is::True);
}

#[test]
fn what_rules_cannot_do_is_refused_by_its_name() {
    let check = |expression: &str, reason: &str| match evaluate(expression, &request(), &metadata())
    {
        Is::Refused(said) => assert!(said.contains(reason), "{expression}: {said}"),
        other => panic!("{expression}: {other:?}"),
    };
    check(
        "request.many == 'a'",
        "test.All.many is repeated; policies are shown singular fields only",
    );
    check(
        "request.many[0] == 'a'",
        "an index isn't supported in rules",
    );
    check("'a' in request.many", "test.All.many is repeated");
    check(
        "request.many.exists(x, x == 'a')",
        "test.All.many is repeated",
    );
    check("request.pairs.a == 'a'", "test.All.pairs is a map");
    check(
        "request.inner == 1",
        "this is a whole test.Inner; name one of its fields",
    );
    check(
        "request.s.name == 'a'",
        "test.All.s is of type string; it has no field \"name\"",
    );
    check(
        "request.nmae == 'a'",
        "test.All has no field \"nmae\"; it has",
    );
    check("request.inner.nmae == 'a'", "did you mean \"name\"?");
    check("has(request.only)", "has() of a test.OnlyOptional");
    check(
        "requst.s == 'a'",
        "nothing is named \"requst\"; there are request, reply, caller, metadata, metadata_values, method, now; did you mean \"request\"?",
    );
    check(
        "reply.s == 'a'",
        "a rule of the hook request isn't shown the reply",
    );
    check(
        "caller.pidd == '1'",
        "caller has no field \"pidd\"; it has application, gid, pid, side, tenant, uid; did you mean \"pid\"?",
    );
    check("caller == 'a'", "caller has the fields application, gid,");
    check("caller.uid == 0", "int");
    check(
        "identity.name == 'a'",
        "who calls is caller, with application,",
    );
    check("metadata[':uid'] == '0'", "has the byte 0x3a");
    check(
        "request.s.startswith('a')",
        "no function is named \"startswith\"",
    );
    check("request.s.startswith('a')", "did you mean \"startsWith\"?");
    check(
        "request.s.lowerAscii() == 'a'",
        "lowerAscii() isn't supported in rules: an extension of CEL",
    );
    check("size(request.i32) == 1", "an int has no size");
    check("request.s == 1", "a string can't be compared with an int");
    check(
        "request.s && true",
        "an operand of && is a bool; this is a string",
    );
    check(
        "request.i32",
        "the condition of a rule is a bool; this is an int",
    );
    check(
        "request.s + 1 == 'a'",
        "string + int has no meaning; string(..) converts",
    );
    check("request.u32 + 1 == 1u", "a constant uint is written 1u");
    check(
        "request.s.matches(request.t)",
        "a pattern is a constant text",
    );
    check(
        "metadata[request.s] == 'a'",
        "a metadata key is a constant text",
    );
    check("metadata['Role'] == 'a'", "metadata key \"Role\"");
    check("metadata['grpc-timeout'] == 'a'", "is the daemon's own");
    check("request.note == null", "null isn't supported in rules");
    check(
        "[1].map(x, x) == [1]",
        "the macros map and filter aren't supported",
    );
    check("{'a': 1}.a == 1", "map values aren't supported");
    check(
        "test.Inner{name: 'a'}.name == 'a'",
        "message values aren't supported",
    );
    check(
        "type(1) == int",
        "type() isn't supported in rules: types are known",
    );
    check(
        "test.Color.GREEN == 1",
        "enum test.Color has no value \"GREEN\"; it has NONE, RED, BLUE",
    );
    check(
        "now.getHours('Europe/Berlin') == 1",
        "is no time zone of rules",
    );
    check("'a' in [1]", "a string is looked for in a list with an int");
    check("true ? 1 : 'a'", "the values of ? : have one type");
    check("request.s ==", "no CEL");
    check("''", "the condition of a rule is a bool");
    check("", "no CEL");
}

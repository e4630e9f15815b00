//! Typed views: getters of every type read the host's values, and the host reads the values from
//! setters.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;
use tollgate_policy::rt::Runtime;

use tollgate_policy::testing::{
    Answer, Changed, Desk, Done, Field, counter, gauge, histogram, log, set_state_room,
};
use tollgate_policy::{Call, Level, Policy, Route, Status, Value, Verdict, policy, state};

/// Reads everything, and changes what a test asks for.
#[derive(Default)]
struct Reader {
    saw: String,
}

#[policy(
    name = "reader",
    proto = "tests/desk.proto",
    counters(asked),
    gauges(depth),
    histograms(lengths),
    capabilities(state)
)]
impl Reader {
    #[request("desk.Desk/Ask", "desk.Desk/AskAgain", reads(name, topic, place.city, place.floor, type), changes(name, topic, place.floor))]
    fn ask(&mut self, ask: &mut Ask<'_>) -> Verdict<'_> {
        ASKED.add(1);
        DEPTH.set(7);
        LENGTHS.record(ask.name().len() as i64);
        self.saw = format!(
            "{} {:?} {:?} {:?} {}",
            ask.name(),
            ask.topic(),
            ask.place_city(),
            ask.place_floor(),
            ask.r#type()
        );
        match ask.name() {
            "rename" => ask.set_name("renamed"),
            "twice" => {
                ask.set_name("once");
                ask.set_name("twice over");
                ask.clear_topic();
                ask.set_place_floor(-3);
            }
            "change and deny" => {
                ask.clear_name();
                return Verdict::deny(Status::NOT_FOUND, "no");
            }
            _ => {}
        }
        Verdict::Allow
    }

    #[reply("desk.Desk/Ask", reads(text, raw))]
    fn answered(&mut self, reply: &Answered<'_>) -> Verdict<'_> {
        self.saw = format!(
            "{} {:?} {:?}",
            reply.text(),
            reply.raw(),
            reply.text_if_granted()
        );
        Verdict::Allow
    }

    #[request(
        "desk.Desk/Count",
        reads(small, large, count, mask, ratio, share, flag, colour),
        changes(small, large, count, mask, ratio, share, flag, colour)
    )]
    fn count(&mut self, n: &mut Count<'_>) -> Verdict<'_> {
        n.set_small(-n.small());
        n.set_large(n.large() - 1);
        n.set_count(n.count() + 1);
        n.set_mask(!n.mask());
        n.set_ratio(n.ratio() * 2.0);
        n.set_share(n.share() / 2.0);
        n.set_flag(!n.flag());
        n.set_colour(n.colour() + 1);
        Verdict::Allow
    }

    #[request("desk.Desk/*")]
    fn others(&mut self, call: &Call<'_>) -> Verdict<'_> {
        Verdict::deny(
            Status::UNAVAILABLE,
            format!("{} fields", call.field_count()),
        )
    }
}

fn desk() -> Desk<Reader> {
    Desk::new("").unwrap()
}

#[test]
fn strings_are_read_with_their_presence() {
    let mut desk = desk();
    let all = [
        ("name", Field::Text("Ada")),
        ("topic", Field::Text("")),
        ("place.city", Field::Text("Ulm")),
        ("place.floor", Field::Int(-1)),
        ("type", Field::Text("t")),
    ];
    assert_eq!(desk.request("desk.Desk/Ask", &all), Answer::Allow);
    assert_eq!(desk.policy().saw, "Ada Some(\"\") Some(\"Ulm\") Some(-1) t");
    assert_eq!(desk.request("desk.Desk/AskAgain", &[]), Answer::Allow);
    assert_eq!(desk.policy().saw, " None None None ");
    assert_eq!(
        (counter(0), gauge(0), histogram(0)),
        (2, Some(7), vec![3, 0])
    );
    desk.reply("desk.Desk/Ask", &[("raw", Field::Bytes(&[0, 255]))]);
    assert_eq!(desk.policy().saw, " [0, 255] Some(\"\")");
}

#[test]
fn numbers_are_read_and_written_at_their_edges() {
    let answer = desk().request(
        "desk.Desk/Count",
        &[
            ("small", Field::Int(i64::from(i32::MAX))),
            ("large", Field::Int(i64::MIN + 1)),
            ("count", Field::Uint(u64::from(u32::MAX) - 1)),
            ("mask", Field::Uint(1)),
            ("ratio", Field::Float(-1.5)),
            ("share", Field::Double(0.5)),
            ("flag", Field::Bool(true)),
            ("colour", Field::Int(-2)),
        ],
    );
    let expected = vec![
        ("small", Changed::Int(-i64::from(i32::MAX))),
        ("large", Changed::Int(i64::MIN)),
        ("count", Changed::Uint(u64::from(u32::MAX))),
        ("mask", Changed::Uint(u64::MAX - 1)),
        ("ratio", Changed::Float(-3.0)),
        ("share", Changed::Double(0.25)),
        ("flag", Changed::Bool(false)),
        ("colour", Changed::Int(-1)),
    ];
    assert_eq!(answer, Answer::Change(expected));
}

#[test]
fn the_last_change_of_a_field_counts_and_a_denial_drops_them() {
    let mut desk = desk();
    let mut ask = |name| desk.request("desk.Desk/Ask", &[("name", Field::Text(name))]);
    assert_eq!(
        ask("rename"),
        Answer::Change(vec![("name", Changed::Text("renamed".to_owned()))])
    );
    let twice = vec![
        ("name", Changed::Text("twice over".to_owned())),
        ("topic", Changed::Clear),
        ("place.floor", Changed::Int(-3)),
    ];
    assert_eq!(ask("twice"), Answer::Change(twice));
    assert_eq!(
        ask("change and deny"),
        Answer::deny(Status::NOT_FOUND, "no")
    );
}

#[test]
fn the_most_exact_function_evaluates() {
    let mut desk = desk();
    assert_eq!(
        desk.request("desk.Desk/Other", &[]),
        Answer::deny(Status::UNAVAILABLE, "0 fields")
    );
}

#[test]
#[should_panic(expected = "this policy needs the field `name`, which it isn't allowed to see")]
fn a_withheld_field_ends_the_policy() {
    desk().request("desk.Desk/Ask", &[("name", Field::Absent)]);
}

#[test]
fn a_withheld_field_can_be_asked_for() {
    let view = tollgate_policy::testing::view(&[Field::Absent, Field::Bytes(b"x")]);
    let mut reader = Reader::default();
    let call = Call::new(0, &view);
    assert_eq!(Answered::new(&call).text_if_granted(), None);
    assert_eq!(Answered::new(&call).raw_if_granted(), Some(&b"x"[..]));
    assert_eq!(
        reader.others(&call),
        Verdict::deny(Status::UNAVAILABLE, "2 fields")
    );
}

#[test]
#[should_panic(expected = "the policy doesn't read `nmae` of desk.Desk/Ask")]
fn a_test_with_a_wrong_field_fails() {
    desk().request("desk.Desk/Ask", &[("nmae", Field::Text("x"))]);
}

#[test]
#[should_panic(expected = "`name` is Text, not Int(3)")]
fn a_test_with_a_wrong_type_fails() {
    desk().request("desk.Desk/Ask", &[("name", Field::Int(3))]);
}

#[test]
fn the_manifest_is_the_modules() {
    let manifest: serde_json::Value = serde_json::from_str(MANIFEST).unwrap();
    assert_eq!(manifest["name"], "reader");
    assert_eq!(manifest["methods"][2]["method"], "desk.Desk/Count");
    assert_eq!(
        Reader::configure(b"{}").err().unwrap(),
        "this policy has no configuration"
    );
}

/// The contents of memory after an evaluation with changes. (Addresses are truncated on this
/// machine, so the test compares their distances.)
#[test]
fn changes_are_written_as_the_abi_says() {
    let view = tollgate_policy::testing::view(&[
        Field::Text("twice"),
        Field::Absent,
        Field::Absent,
        Field::Absent,
        Field::Text(""),
    ]);
    let mut runtime = Runtime::<Reader>::new();
    runtime.buffer(4096);
    assert_eq!(runtime.configure(0), 0);
    let buffer = runtime.bytes_mut();
    buffer[..4].copy_from_slice(&32u32.to_le_bytes());
    buffer[4..8].copy_from_slice(&(view.len() as u32).to_le_bytes());
    buffer[32..32 + view.len()].copy_from_slice(&view);
    assert_eq!(runtime.request(1), 0);
    let word = |at: usize, bytes: &[u8]| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let entry = runtime.bytes_mut()[..32].to_vec();
    assert_eq!(
        (word(12, &entry), word(16, &entry), word(24, &entry)),
        (3, 0, 48)
    );
    let arena = runtime.arena().to_vec();
    let records: Vec<u32> = (0..12).map(|i| word(4 * i, &arena)).collect();
    assert_eq!(records[..2], [3, 0], "bytes, the first field");
    assert_eq!(
        records[2].wrapping_sub(word(20, &entry)),
        48,
        "behind the three records"
    );
    assert_eq!(records[3], 10);
    assert_eq!(records[4..6], [1, 1], "clear, the second field");
    assert_eq!(
        records[8..],
        [2, 2, (-3i32).cast_unsigned(), u32::MAX],
        "bits, the third field, sign-extended"
    );
    assert_eq!(&arena[48..], b"twice over");
}

#[test]
fn the_desks_state_is_shared_until_a_new_desk() {
    let _first = desk();
    assert!(state::set(b"k", b"value"));
    let _second = Desk::<Reader>::beside("").unwrap();
    let mut room = [0; 3];
    assert_eq!((state::get(b"k", &mut room), &room), (Some(5), b"val"));
    assert_eq!((state::add(b"n", 5), state::add(b"n", -7)), (5, -2));
    set_state_room(2);
    assert!(!state::set(b"another", b""));
    state::delete(b"k");
    assert!(state::set(b"another", b""));
    tollgate_policy::log(Level::Info, "a line");
    assert_eq!(log(), vec![(Level::Info, "a line".to_owned())]);
    let _third = desk();
    assert_eq!(state::get(b"n", &mut room), None);
}

/// Reads and changes metadata, and does everything else that can be done to a call.
mod metadata {
    use super::*;

    #[derive(Default)]
    struct Keys {
        saw: String,
    }

    #[policy(
        name = "keys",
        proto = "tests/desk.proto",
        capabilities(delay, priority, route)
    )]
    impl Keys {
        #[request(
            "desk.Desk/Ask",
            reads(name),
            changes(name),
            metadata("x-user", "trace-bin"),
            metadata_changes("x-user", "trace-bin")
        )]
        fn ask(&mut self, ask: &mut Asked<'_>) -> Verdict<'_> {
            self.saw = format!(
                "{} {:?} {:?} {}",
                ask.name(),
                ask.metadata_x_user(),
                ask.metadata_trace_bin(),
                ask.metadata_x_user_values().len()
            );
            match ask.name() {
                "all" => {
                    ask.set_name("done");
                    ask.set_metadata_x_user("ada");
                    ask.set_metadata_trace_bin(&[0, 255]);
                    ask.remove_metadata_trace_bin();
                    Verdict::Allow
                        .with_delay(Duration::from_millis(3))
                        .with_priority(4)
                        .with_route(&Route::new("canary").unwrap())
                }
                "deny" => {
                    ask.remove_metadata_x_user();
                    Verdict::deny(Status::NOT_FOUND, "no").with_priority(1)
                }
                _ => Verdict::Allow,
            }
        }
    }

    #[test]
    fn metadata_is_read_by_its_key_and_changed_beside_all_else() {
        let mut desk = Desk::<Keys>::new("").unwrap();
        let pairs: [(&str, &[u8]); 4] = [
            ("x-user", b"one"),
            ("other", b"unseen"),
            ("trace-bin", &[1]),
            ("x-user", b"two"),
        ];
        let name = |name| [("name", Field::Text(name))];
        let answer = desk.request_with("desk.Desk/Ask", &name("read"), &pairs);
        assert_eq!(answer, Answer::Allow);
        assert_eq!(desk.policy().saw, r#"read Some("one") Some([1]) 2"#);
        let answer = desk.request("desk.Desk/Ask", &name("all"));
        let expected = Done {
            fields: vec![("name", Changed::Text("done".to_owned()))],
            metadata: vec![
                ("x-user".to_owned(), Some(b"ada".to_vec())),
                ("trace-bin".to_owned(), None),
            ],
            delay: Duration::from_millis(3),
            priority: Some(4),
            route: Some("canary".to_owned()),
        };
        // The verdict's own effects come before those of setters; they are reported together, by
        // kind.
        assert_eq!(answer, Answer::Effects(expected));
        assert_eq!(desk.policy().saw, "all None None 0");
        let answer = desk.request("desk.Desk/Ask", &name("deny"));
        assert_eq!(answer, Answer::deny(Status::NOT_FOUND, "no"));
    }

    #[test]
    fn the_manifest_lists_the_keys() {
        for part in [
            r#""metadata":["x-user","trace-bin"]"#,
            r#""metadata_changes":["x-user","trace-bin"]"#,
            r#""capabilities":["delay","priority","route","change"]"#,
        ] {
            assert!(MANIFEST.contains(part), "{MANIFEST} lacks {part}");
        }
    }
}

/// What the daemon knows of who calls.
mod caller {
    use super::*;

    #[derive(Default)]
    struct Door;

    #[policy(name = "door", version = "1")]
    impl Door {
        #[request("*", metadata(":application", ":uid"))]
        fn any(&mut self, call: &mut Any<'_>) -> Verdict<'_> {
            match (call.caller_application(), call.caller_uid()) {
                (Some("web"), Some("1000")) => Verdict::Allow,
                (_, None) => Verdict::deny(Status::UNAUTHENTICATED, "unknown"),
                _ => Verdict::deny(Status::PERMISSION_DENIED, "another"),
            }
        }
    }

    #[test]
    fn an_attribute_has_a_getter_of_its_own() {
        assert!(
            MANIFEST.contains(r#""metadata":[":application",":uid"]"#),
            "{MANIFEST}"
        );
        let mut desk = Desk::<Door>::new("").unwrap();
        let mut ask = |caller: &[(&str, &[u8])]| desk.request_with("desk.Desk/Ask", &[], caller);
        assert_eq!(
            ask(&[(":application", b"web"), (":uid", b"1000")]),
            Answer::Allow
        );
        let another = Answer::deny(Status::PERMISSION_DENIED, "another");
        assert_eq!(ask(&[(":application", b"web"), (":uid", b"0")]), another);
        assert_eq!(
            ask(&[(":application", b"web")]),
            Answer::deny(Status::UNAUTHENTICATED, "unknown")
        );
    }
}

/// Keys that the configuration lists are numbered.
mod configured {
    use super::*;

    #[derive(Default)]
    struct Swap;

    #[policy(name = "swap")]
    impl Swap {
        #[reply("*", metadata(*), metadata_changes(*))]
        fn any(&mut self, call: &mut Any<'_>) -> Verdict<'_> {
            match call.metadata(1).first() {
                Some(value) => call.set_metadata(0, value),
                None => call.remove_metadata(0),
            }
            Verdict::Allow
        }
    }

    #[test]
    fn keys_are_those_of_the_configuration() {
        assert!(MANIFEST.contains(r#""reply_metadata":["*"],"reply_metadata_changes":["*"]"#));
        let mut desk = Desk::<Swap>::new("")
            .unwrap()
            .with_keys(&["a", "b"], &["c"]);
        let pairs: [(&str, &[u8]); 1] = [("b", b"1")];
        let changed = |value: Option<&[u8]>| {
            Answer::Effects(Done {
                metadata: vec![("c".to_owned(), value.map(<[u8]>::to_vec))],
                ..Done::default()
            })
        };
        assert_eq!(desk.reply_with("a.B/C", &[], &pairs), changed(Some(b"1")));
        assert_eq!(desk.reply("a.B/C", &[]), changed(None));
    }
}

mod lists {
    use super::*;

    /// Reads and changes the fields that its configuration lists, besides one of its own.
    struct Configured {
        lists: Lists,
        saw: String,
    }

    #[policy(name = "configured", proto = "tests/desk.proto")]
    impl Configured {
        fn configure(config: &[u8]) -> Result<Configured, String> {
            let [first, second] = config else {
                return Err("two digits".to_owned());
            };
            let lists = Lists {
                first: u32::from(first - b'0'),
                second: u32::from(second - b'0'),
            };
            Ok(Configured {
                lists,
                saw: String::new(),
            })
        }

        fn lists(&self) -> Lists {
            self.lists
        }

        #[request(
            "desk.Desk/Ask",
            reads(name, config(first), config(second: string)),
            changes(config(second: string), config(first)),
            metadata("x-user")
        )]
        fn ask(&mut self, ask: &mut Whole<'_>) -> Verdict<'_> {
            let first: Vec<_> = ask.first_all().collect();
            let user = ask.metadata_x_user();
            self.saw = format!("{} {first:?} {user:?}", ask.name());
            for at in 0..self.lists.second {
                if let Some(text) = ask.second(at).and_then(|value| value.text()) {
                    ask.set_second_bytes(at, text.to_uppercase().as_bytes());
                }
            }
            if let Some(Value::Uint(number)) = first.first().copied().flatten() {
                ask.set_first_bits(0, number + 1);
            }
            if self.lists.first > 1 {
                ask.clear_first(1);
            }
            Verdict::Allow
        }
    }

    #[test]
    fn fields_of_the_configuration_have_their_places_and_types() {
        let desk = Desk::<Configured>::new("21").unwrap();
        let desk = desk.with_list("first", &["a.count", "b"]);
        let mut desk = desk.with_list("second", &["c"]);
        let fields = [
            ("name", Field::Text("Ada")),
            ("a.count", Field::Uint(7)),
            ("c", Field::Text("low")),
        ];
        let metadata: [(&str, &[u8]); 1] = [("x-user", b"u")];
        let answer = desk.request_with("desk.Desk/Ask", &fields, &metadata);
        let expected = vec![
            ("c", Changed::Text("LOW".to_owned())),
            ("a.count", Changed::Uint(8)),
            ("b", Changed::Clear),
        ];
        assert_eq!(answer, Answer::Change(expected));
        assert_eq!(desk.policy().saw, "Ada [Some(Uint(7)), None] Some(\"u\")");
        let mut none = Desk::<Configured>::new("00").unwrap();
        let answer = none.request_with("desk.Desk/Ask", &[("name", Field::Text("Bob"))], &metadata);
        assert_eq!(answer, Answer::Allow);
        assert_eq!(none.policy().saw, "Bob [] Some(\"u\")");
    }

    #[test]
    #[should_panic(expected = "the configuration's list has fewer fields")]
    fn a_place_behind_a_list_is_no_field() {
        let view = tollgate_policy::testing::view(&[Field::Text("Ada"), Field::Values(&[])]);
        let lists = Lists::default();
        let _none = Whole::new(&Call::new(0, &view), lists).first(0);
    }
}

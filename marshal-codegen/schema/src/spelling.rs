//! Suggests the intended name for a mistyped one.

/// The most similar of `names`, if at most a third of the letters differ.
pub fn meant<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // Words longer than any name aren't typing errors, and comparing them takes time.
    const MOST: usize = 256;
    if wrong.len() > MOST {
        return None;
    }
    let near = names.into_iter().filter(|name| name.len() <= MOST);
    let near = near.map(|name| (distance(wrong, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= wrong.chars().count().div_ceil(3)).then_some(name)
}

/// The same as part of a sentence: `; did you mean "name"?`, or nothing.
pub fn did_you_mean<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    meant(wrong, names).map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// The same for an error of `serde`, which names the wrong word and the valid ones: "unknown field
/// `a`, expected one of `b`, `c`".
pub fn did_serde_mean(error: &str) -> String {
    let mut quoted = error.split('`').skip(1).step_by(2);
    match quoted.next() {
        Some(wrong) if error.starts_with("unknown ") => did_you_mean(wrong, quoted),
        _ => String::new(),
    }
}

/// Edit distance: letters to insert, delete or replace to turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_meant_if_it_is_near() {
        let check = |wrong: &str, names: &[&str], expected: Option<&str>| {
            assert_eq!(meant(wrong, names.iter().copied()), expected, "{wrong}");
        };
        check(
            "custmer_name",
            &["coupon", "customer_name"],
            Some("customer_name"),
        );
        check("Resrve", &["Reserve", "Cancel"], Some("Reserve"));
        check("hotel.Motel", &["hotel.Reservation"], None);
        check("x", &["y"], Some("y"));
        check("", &["y"], None);
        check("a", &[], None);
        check(&"a".repeat(300), &["a"], None);
        assert_eq!(did_you_mean("cors", ["cores"]), "; did you mean \"cores\"?");
        assert_eq!(did_you_mean("nothing", ["cores"]), "");
    }

    #[test]
    fn serde_names_what_would_do() {
        for (error, expected) in [
            (
                "unknown field `nmae`, expected one of `name`, `socket`",
                "; did you mean \"name\"?",
            ),
            (
                "unknown variant `slep`, expected `sleep` or `spin`",
                "; did you mean \"sleep\"?",
            ),
            ("unknown field `nothing`, expected `a`", ""),
            ("invalid type: string \"`a`\", expected `b`", ""),
            ("unknown", ""),
        ] {
            assert_eq!(did_serde_mean(error), expected, "{error}");
        }
    }
}

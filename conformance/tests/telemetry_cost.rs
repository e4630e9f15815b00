//! The cost of telemetry in instructions of the daemon: nearly the same on every machine, whatever
//! else runs on it.
#![forbid(unsafe_code)]

use tollgate_conformance::callgrind::PerCall;

/// The limit for one side of a call: 100 ns at one instruction per cycle of 3.3 GHz, which is slow.
const MOST_PER_SIDE: u64 = 330;

/// A collector that nobody listens as, and a sampling rate of one in a million: all metrics are
/// counted, and each call is sampled.
const KNOWN: &str = "[telemetry]
endpoint = 'http://127.0.0.1:9'
interval_s = 3600
sample_per_million = 1
";

/// No telemetry.
const UNKNOWN: &str = "[telemetry]
durations = false
kept_spans = 0
log_failures = false
";

#[test]
fn a_call_that_is_not_sampled_pays_little_for_what_is_known_of_it() {
    let (unknown, known) = (PerCall::of_daemon(UNKNOWN), PerCall::of_daemon(KNOWN));
    // These files decide about tracing, and that function records a call's duration. The rest of
    // the daemon differs more than that from run to run, since the number of turns varies.
    let decides = |file: &str| {
        let parts = [
            "telemetry/src/sampling.rs",
            "observe/traces.rs",
            "/fastrand-",
        ];
        parts.iter().any(|part| file.contains(part))
    };
    let notes = |name: &str| name.contains("Observer") && name.ends_with("measure");
    let [with, without] =
        [&known, &unknown].map(|counts| [counts.of_files(decides), counts.of_functions(notes)]);
    println!(
        "instructions per call within the host, which has both sides: {} + {}, if nothing is known of it {} + {}",
        with[0], with[1], without[0], without[1],
    );
    assert!(
        with[0] > without[0] && with[1] > without[1] + 50,
        "the sources or the function aren't recognized in the profile"
    );
    let pays = with.iter().sum::<u64>() - without.iter().sum::<u64>();
    assert!(
        pays <= 2 * MOST_PER_SIDE,
        "a call within the host pays {pays} instructions for its telemetry"
    );
}

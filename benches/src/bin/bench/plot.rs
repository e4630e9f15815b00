//! From samples to pictures. Pure: samples in, SVG out.
//!
//! Every value is a dot at the median with a line from the minimum to the maximum. Axes are
//! logarithmic, since a sidecar and a busy-polled socket are three orders of magnitude apart.

use plotters::coord::ranged1d::SegmentedCoord;
use plotters::coord::types::RangedCoordusize;
use plotters::prelude::*;
use tollgate_benches::drawing::{
    BELOW, BLUE, CAPTION, Drawn, FONT, GREEN, GREY, MARGIN, OCHRE, ORANGE, PURPLE, SKY, VERMILION,
    WIDTH, short,
};
use tollgate_benches::figures::Spread;

use crate::metric::{GOODPUT, Metric, P50, P99, RPS, SHARE};
use crate::samples::Samples;
use crate::scenario::SCENARIOS;
use crate::subject::{Language, Otherwise, Policy, Subject};

/// One picture.
struct Plot {
    /// The name of its file, without `.svg`.
    name: &'static str,
    /// Its title.
    title: &'static str,
    metric: Metric,
    /// The smallest value on the axis. Smaller values are drawn as this one, because a logarithmic
    /// axis has no zero.
    least: f64,
    across: Across,
}

/// The other axis.
enum Across {
    /// Each subject of a scenario, one below the other.
    Subjects(&'static str),
    /// Each of these scenarios, from left to right under these names: a line per subject.
    Scenarios(&'static str, &'static [(&'static str, &'static str)]),
}

const fn subjects(scenario: &'static str, title: &'static str, metric: Metric) -> Plot {
    Plot {
        name: scenario,
        title,
        metric,
        least: 0.0,
        across: Across::Subjects(scenario),
    }
}

const PAUSES: &[(&str, &str)] = &[
    ("none", "waiting-0"),
    ("10 us", "waiting-10us"),
    ("100 us", "waiting-100us"),
    ("1 ms", "waiting-1ms"),
    ("10 ms", "waiting-10ms"),
    ("100 ms", "waiting-100ms"),
    ("1 s", "waiting-1s"),
];

const OFFERED: &[(&str, &str)] = &[
    ("4 in flight", "overload-peak"),
    ("7,500 calls/s", "overload-knee"),
    ("30,000 calls/s", "overload-3x"),
];

const PLOTS: [Plot; 14] = [
    subjects(
        "latency-echo",
        "One call of 64 B after the other: p50, us",
        P50,
    ),
    subjects(
        "latency-hotel",
        "One reservation after the other, and policies: p50, us",
        P50,
    ),
    subjects(
        "latency-host",
        "One call of 64 B after the other within a host: p50, us",
        P50,
    ),
    subjects("rate-echo", "128 calls of 32 B in flight: calls/s", RPS),
    subjects(
        "rate-hotel",
        "128 reservations in flight, and policies: calls/s",
        RPS,
    ),
    Plot {
        name: "goodput",
        title: "Requests of one size in flight: GB/s",
        metric: GOODPUT,
        least: 0.0,
        across: Across::Scenarios(
            "bytes of a request",
            &[
                ("8 KiB", "goodput-8k-echo"),
                ("128 KiB", "goodput-128k-echo"),
                ("2 MiB", "goodput-2m-echo"),
                ("8 MiB", "goodput-8m-echo"),
            ],
        ),
    },
    Plot {
        name: "waiting",
        title: "One call after the other: p50, us",
        metric: P50,
        least: 0.0,
        across: Across::Scenarios("pause between two calls", PAUSES),
    },
    Plot {
        name: "waiting-cpu",
        title: "The same: server and daemons, % of a core (0.1 and less at the bottom)",
        metric: SHARE,
        least: 0.1,
        across: Across::Scenarios("pause between two calls", PAUSES),
    },
    Plot {
        name: "threads",
        title: "128 calls of 32 B in flight: calls/s",
        metric: RPS,
        least: 0.0,
        across: Across::Scenarios(
            "threads of the client, each with a session",
            &[
                ("1", "threads-1"),
                ("2", "threads-2"),
                ("4", "threads-4"),
                ("8", "threads-8"),
            ],
        ),
    },
    Plot {
        name: "ycsb",
        title: "YCSB, 128 clients: operations/s",
        metric: RPS,
        least: 0.0,
        across: Across::Scenarios(
            "workload",
            &[
                ("A", "ycsb-a"),
                ("B", "ycsb-b"),
                ("C", "ycsb-c"),
                ("D", "ycsb-d"),
                ("E", "ycsb-e"),
                ("F", "ycsb-f"),
            ],
        ),
    },
    Plot {
        name: "ycsb-b",
        title: "YCSB, workload B: operations/s",
        metric: RPS,
        least: 0.0,
        across: Across::Scenarios(
            "clients",
            &[
                ("1", "ycsb-b-1"),
                ("8", "ycsb-b-8"),
                ("32", "ycsb-b-32"),
                ("128", "ycsb-b"),
            ],
        ),
    },
    Plot {
        name: "sessions",
        title: "1,024 calls of 32 B in flight: calls/s",
        metric: RPS,
        least: 0.0,
        across: Across::Scenarios(
            "sessions or connections that they are spread over",
            &[
                ("1", "sessions-1"),
                ("8", "sessions-8"),
                ("128", "sessions-128"),
                ("1,000", "sessions-1000"),
            ],
        ),
    },
    Plot {
        name: "overload",
        title: "A handler that computes for 100 us: answered calls/s",
        metric: RPS,
        least: 0.0,
        across: Across::Scenarios("offered", OFFERED),
    },
    Plot {
        name: "overload-p99",
        title: "The same: p99 of answered calls, us",
        metric: P99,
        least: 0.0,
        across: Across::Scenarios("offered", OFFERED),
    },
];

/// A picture and its title.
pub(crate) struct Picture {
    name: &'static str,
    /// Its title.
    pub(crate) title: &'static str,
    /// The content of the file.
    pub(crate) svg: String,
}

impl Picture {
    /// Its path, relative to the report.
    pub(crate) fn file(&self) -> String {
        format!("plots/{}.svg", self.name)
    }
}

/// A subject's values, each with its place on the other axis.
type Series = (Subject, Vec<(usize, Spread)>);

/// All pictures with samples.
pub(crate) fn draw(samples: &Samples) -> Result<Vec<Picture>, String> {
    let mut pictures = Vec::new();
    for plot in &PLOTS {
        let series = plot.series(samples);
        if series.is_empty() {
            continue;
        }
        let svg = match plot.across {
            Across::Subjects(_) => rows(plot, &series),
            Across::Scenarios(axis, places) => lines(plot, axis, places, &series),
        };
        pictures.push(Picture {
            name: plot.name,
            title: plot.title,
            svg: svg.map_err(|error| format!("cannot draw {}: {error}", plot.name))?,
        });
    }
    Ok(pictures)
}

impl Plot {
    fn series(&self, samples: &Samples) -> Vec<Series> {
        let scenarios: Vec<_> = match self.across {
            Across::Subjects(name) => vec![name],
            Across::Scenarios(_, places) => places.iter().map(|(_, name)| *name).collect(),
        };
        let known = SCENARIOS.iter().find(|known| known.name == scenarios[0]);
        let subjects = known.map_or(&[][..], |scenario| scenario.subjects);
        let values = |subject| {
            let each = scenarios.iter().enumerate();
            each.filter_map(|(place, name)| {
                let Spread { median, min, max } = samples.spread(name, subject, self.metric.key)?;
                let [median, min, max] = [median, min, max].map(|value| value.max(self.least));
                Some((place, Spread { median, min, max }))
            })
            .collect::<Vec<_>>()
        };
        let all = subjects.iter().map(|subject| (*subject, values(*subject)));
        all.filter(|(_, values)| !values.is_empty()).collect()
    }
}

/// Width of a subject's name, in pixels.
const NAME: u32 = 140;
/// Height of a row with one subject, in pixels.
const ROW: u32 = 30;
/// Height of everything except rows, and of a picture with lines, in pixels.
const HEAD: u32 = 100;
const HEIGHT: u32 = 360;

/// From a little below the minimum to a little above the maximum.
fn range(series: &[Series]) -> std::ops::Range<f64> {
    let spreads = series.iter().flat_map(|(_, values)| values);
    let (low, high) = spreads.fold((f64::MAX, f64::MIN), |(low, high), (_, spread)| {
        (low.min(spread.min), high.max(spread.max))
    });
    low / 1.5..high * 1.5
}

/// An axis of `count` named places; at least one.
fn segments(count: usize) -> SegmentedCoord<RangedCoordusize> {
    // The last place is included.
    (0..count - 1).into_segmented()
}

/// One row per subject.
fn rows(plot: &Plot, series: &[Series]) -> Drawn {
    let count = series.len();
    let mut svg = String::new();
    {
        let height = HEAD + ROW * count as u32;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(plot.title, CAPTION)
            .margin(MARGIN)
            .x_label_area_size(BELOW)
            .y_label_area_size(NAME)
            .build_cartesian_2d(range(series).log_scale(), segments(count))?;
        // The first subject is on top.
        let row = |at: usize| SegmentValue::CenterOf(count - 1 - at);
        let from_below = |at| series.iter().rev().nth(at);
        let name = |at: &SegmentValue<usize>| match at {
            SegmentValue::CenterOf(at) => from_below(*at)
                .map_or("", |(subject, _)| subject.name())
                .to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(8)
            .x_label_formatter(&short)
            .x_desc(plot.metric.title)
            .y_labels(count)
            .y_label_formatter(&name)
            .label_style(FONT)
            .draw()?;
        for (at, (subject, values)) in series.iter().enumerate() {
            let color = color(*subject);
            for (_, spread) in values {
                let ends = [spread.min, spread.max].map(|value| (value, row(at)));
                chart.draw_series([PathElement::new(ends, color.stroke_width(3))])?;
                let median = (spread.median, row(at));
                chart.draw_series([Circle::new(median.clone(), 6, color.filled())])?;
                let text = format!("{:.*}", plot.metric.digits, spread.median);
                let above = EmptyElement::at(median) + Text::new(text, (-14, -20), FONT);
                chart.draw_series([above])?;
            }
        }
        root.present()?;
    }
    Ok(svg)
}

/// One line per subject, over places.
fn lines(plot: &Plot, axis: &str, places: &[(&str, &str)], series: &[Series]) -> Drawn {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let (left, right) = root.split_horizontally(WIDTH - NAME);
        let mut chart = ChartBuilder::on(&left)
            .caption(plot.title, CAPTION)
            .margin(MARGIN)
            .x_label_area_size(BELOW)
            .y_label_area_size(NAME / 2)
            .build_cartesian_2d(segments(places.len()), range(series).log_scale())?;
        let place = |at: &SegmentValue<usize>| match at {
            SegmentValue::CenterOf(at) => places.get(*at).map_or("", |(name, _)| name).to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(places.len())
            .x_label_formatter(&place)
            .x_desc(axis)
            .y_labels(12)
            .y_label_formatter(&short)
            .label_style(FONT)
            .draw()?;
        for (at, (subject, values)) in series.iter().enumerate() {
            let color = color(*subject);
            let at_place = |(place, value): (usize, f64)| (SegmentValue::CenterOf(place), value);
            let medians = values
                .iter()
                .map(|(at, spread)| at_place((*at, spread.median)));
            let medians: Vec<_> = medians.collect();
            chart.draw_series(LineSeries::new(medians.clone(), color.stroke_width(2)))?;
            for (median, (at, spread)) in medians.into_iter().zip(values) {
                let ends = [spread.min, spread.max].map(|value| at_place((*at, value)));
                chart.draw_series([PathElement::new(ends, color)])?;
                chart.draw_series([Circle::new(median, 4, color.filled())])?;
            }
            let y = (HEAD / 2 + at as u32 * ROW * 2 / 3) as i32;
            right.draw(&Circle::new((0, y), 5, color.filled()))?;
            right.draw(&Text::new(subject.name(), (12, y - 7), FONT))?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// A family of colours per system.
fn color(subject: Subject) -> RGBColor {
    match subject {
        Subject::Tcp(_) | Subject::Shm { .. } => GREY,
        Subject::Iceoryx2 => GREEN,
        Subject::Tonic(1) => BLUE,
        Subject::Tonic(_) | Subject::TonicAcl => SKY,
        Subject::Grpc(Language::Go) => GREEN,
        Subject::Grpc(Language::Cpp) => PURPLE,
        Subject::Envoy(_) => OCHRE,
        Subject::OneDaemon
        | Subject::Tollgate(Policy::None)
        | Subject::Otherwise(Otherwise::Admit) => VERMILION,
        Subject::Tollgate(_) => ORANGE,
        Subject::Otherwise(Otherwise::Spin | Otherwise::RoundRobin | Otherwise::Traced) => PURPLE,
        Subject::Otherwise(Otherwise::Sleep | Otherwise::Unobserved) => GREEN,
        Subject::Otherwise(Otherwise::Queue | Otherwise::Sampled) => ORANGE,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_measured_is_drawn_and_nothing_else() {
        let sample = |scenario: &str, subject: &str, key: &str, value: f64| json!({"scenario": scenario, "subject": subject, "repetition": 0, key: value});
        let samples = json!({"samples": [
            sample("latency-echo", "tcp", "p50_us", 7.25),
            sample("latency-echo", "tollgate", "p50_us", 27.0),
            sample("waiting-0", "tollgate", "share_percent", 90.0),
            // Zero, on a logarithmic axis.
            sample("waiting-1s", "tollgate", "share_percent", 0.0),
        ]});
        let pictures = draw(&Samples::from_json(&samples)).unwrap();
        let names: Vec<_> = pictures.iter().map(|picture| picture.name).collect();
        assert_eq!(names, ["latency-echo", "waiting-cpu"]);
        let latency = &pictures[0].svg;
        for text in ["tcp", "tollgate", "7.2", "27.0", "p50, us"] {
            assert!(
                latency.contains(&format!("\n{text}\n")),
                "{text} is not in {latency}"
            );
        }
        assert!(!latency.contains("grpc-go"), "{latency}");
        assert!(!pictures[1].svg.contains("NaN"), "{}", pictures[1].svg);
    }
}

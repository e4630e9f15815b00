//! Samples, and the medians and ratios over them.
//!
//! A ratio is taken within a repetition, between two windows that ran seconds apart, and the report
//! shows the median over the repetitions. So a machine that gets slower over minutes doesn't bias
//! the ratio.

use serde_json::{Map, Value};
use tollgate_benches::figures::Spread;

use crate::claim::Claim;
use crate::metric::Metric;
use crate::scenario::SCENARIOS;
use crate::subject::Subject;

/// One window of one subject.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// The scenario.
    pub(crate) scenario: &'static str,
    /// The subject.
    pub(crate) subject: Subject,
    /// The repetition, from 0.
    pub(crate) repetition: usize,
    /// The client's numbers, or the reason why there are none.
    pub(crate) outcome: Result<Map<String, Value>, String>,
}

/// All samples of a run.
#[derive(Debug, Default)]
pub(crate) struct Samples(pub(crate) Vec<Sample>);

/// The divisor of a ratio: the best of these subjects in any of these scenarios.
#[derive(Clone, Copy)]
struct Others<'o> {
    scenarios: &'o [&'o str],
    subjects: &'o [Subject],
}

impl Samples {
    /// Reads the output of [`to_json`](crate::report::to_json). Samples of removed scenarios and
    /// subjects are left out.
    pub(crate) fn from_json(json: &Value) -> Samples {
        let sample = |entry: &Value| {
            let is_this = |name: &str, key: &str| entry[key].as_str() == Some(name);
            let scenario = SCENARIOS.iter().find(|s| is_this(s.name, "scenario"))?;
            let mut subjects = Subject::ALL.into_iter();
            let subject = subjects.find(|subject| is_this(subject.name(), "subject"))?;
            Some(Sample {
                scenario: scenario.name,
                subject,
                repetition: usize::try_from(entry["repetition"].as_u64()?).ok()?,
                outcome: match entry["failed"].as_str() {
                    Some(sentence) => Err(sentence.to_owned()),
                    None => Ok(entry.as_object()?.clone()),
                },
            })
        };
        let entries = json["samples"].as_array().map_or(&[][..], Vec::as_slice);
        Samples(entries.iter().filter_map(sample).collect())
    }

    fn value(&self, scenario: &str, subject: Subject, repetition: usize, key: &str) -> Option<f64> {
        let found = self.0.iter().find(|sample| {
            (sample.scenario, sample.subject, sample.repetition) == (scenario, subject, repetition)
        });
        found?.outcome.as_ref().ok()?.get(key)?.as_f64()
    }

    fn repetitions(&self) -> usize {
        self.0
            .iter()
            .map(|sample| sample.repetition + 1)
            .max()
            .unwrap_or(0)
    }

    /// The spread of a number over the repetitions.
    pub(crate) fn spread(&self, scenario: &str, subject: Subject, key: &str) -> Option<Spread> {
        let each = 0..self.repetitions();
        Spread::of(
            each.filter_map(|rep| self.value(scenario, subject, rep, key))
                .collect(),
        )
    }

    /// The spread over the repetitions of a number divided by the best of other subjects' numbers
    /// in the same repetition.
    pub(crate) fn ratio(
        &self,
        scenario: &str,
        of: Subject,
        to: &[Subject],
        metric: Metric,
    ) -> Option<Spread> {
        self.ratio_to(
            scenario,
            of,
            Others {
                scenarios: &[scenario],
                subjects: to,
            },
            metric,
        )
    }

    /// Like [`ratio`](Self::ratio), but the others' numbers are from any of these scenarios.
    fn ratio_to(
        &self,
        scenario: &str,
        of: Subject,
        to: Others<'_>,
        metric: Metric,
    ) -> Option<Spread> {
        let each = 0..self.repetitions();
        let ratio = |rep| {
            let value = self.value(scenario, of, rep, metric.key)?;
            let places = to
                .scenarios
                .iter()
                .flat_map(|at| to.subjects.iter().map(move |subject| (at, subject)));
            let others =
                places.filter_map(|(at, subject)| self.value(at, *subject, rep, metric.key));
            let best = others.reduce(if metric.more { f64::max } else { f64::min });
            Some(value / best?)
        };
        Spread::of(each.filter_map(ratio).collect())
    }

    /// The samples without numbers.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&Sample, &str)> {
        let failed = |sample: &'_ Sample| sample.outcome.is_err();
        self.0
            .iter()
            .filter(move |sample| failed(sample))
            .map(|sample| {
                let sentence = sample.outcome.as_ref().err();
                (sample, sentence.map_or("", String::as_str))
            })
    }

    /// The spread of a claim's number, or of its ratio to others' numbers, over the repetitions.
    pub(crate) fn claimed(&self, claim: &Claim) -> Option<Spread> {
        let scenario = SCENARIOS.iter().find(|s| s.name == claim.scenario)?;
        let metric = claim.metric.unwrap_or(scenario.metrics[0]);
        let same = [claim.scenario];
        let elsewhere = match claim.elsewhere {
            [] => &same[..],
            elsewhere => elsewhere,
        };
        match claim.to {
            [] => self.spread(claim.scenario, claim.subject, metric.key),
            to => self.ratio_to(
                claim.scenario,
                claim.subject,
                Others {
                    scenarios: elsewhere,
                    subjects: to,
                },
                metric,
            ),
        }
    }
}

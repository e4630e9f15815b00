//! A daemon's metrics at one moment: families of points, each of one tenant or of none.
//!
//! Names and units are OpenTelemetry's; [`prometheus`](crate::prometheus) and [`otlp`](crate::otlp)
//! write them. A point's tenant is separate from its labels, because it decides who may see the
//! point.

use std::borrow::Cow;
use std::sync::Arc;

use crate::histogram::Histogram;

/// The kind of a family's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the daemon restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Durations.
    Histogram,
}

/// One number, or one histogram.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A measure.
    Measure(f64),
    /// Durations.
    Durations(Box<Histogram>),
}

/// A value with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its tenant; `None`: the daemon's.
    pub tenant: Option<Arc<str>>,
    /// The other labels, which distinguish it within its family.
    pub labels: Vec<(&'static str, Cow<'static, str>)>,
    /// The value.
    pub value: Value,
}

/// Points with one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// OpenTelemetry's name.
    pub name: &'static str,
    /// The UCUM unit: `s`, `By`, `{call}`; `1` is a ratio.
    pub unit: &'static str,
    /// One sentence of help.
    pub help: &'static str,
    /// The kind of its numbers.
    pub kind: Kind,
    /// The points.
    pub points: Vec<Point>,
}

/// All metrics of a daemon.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Families, sorted by name.
    pub families: Vec<Family>,
}

/// The label of a point's tenant.
pub const TENANT: &str = "tollgate.tenant";

/// The label of points that had no room for a series of their own.
pub const OVERFLOW: &str = "otel.metric.overflow";

impl Family {
    /// A family without points.
    pub fn new(name: &'static str, unit: &'static str, help: &'static str, kind: Kind) -> Family {
        Family {
            name,
            unit,
            help,
            kind,
            points: Vec::new(),
        }
    }

    /// Adds a point.
    pub fn push(
        &mut self,
        tenant: Option<&Arc<str>>,
        labels: Vec<(&'static str, Cow<'static, str>)>,
        value: Value,
    ) {
        self.points.push(Point {
            tenant: tenant.cloned(),
            labels,
            value,
        });
    }
}

impl Metrics {
    /// The part that one tenant may see: its own points only.
    pub fn of_tenant(&self, tenant: &str) -> Metrics {
        self.filtered(|point| point.tenant.as_deref() == Some(tenant))
    }

    fn filtered(&self, keep: impl Fn(&Point) -> bool) -> Metrics {
        let families = self.families.iter().map(|family| Family {
            points: family.points.iter().filter(|p| keep(p)).cloned().collect(),
            ..*family
        });
        Metrics {
            families: families
                .filter(|family| !family.points.is_empty())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_sees_its_own_points_only() {
        let mut calls = Family::new("a.calls", "{call}", "Calls.", Kind::Counter);
        let (acme, other): (Arc<str>, Arc<str>) = ("acme".into(), "other".into());
        calls.push(Some(&acme), Vec::new(), Value::Count(1));
        calls.push(Some(&other), Vec::new(), Value::Count(2));
        calls.push(None, Vec::new(), Value::Count(3));
        let mut own = Family::new("a.runtime", "s", "Time.", Kind::Counter);
        own.push(None, Vec::new(), Value::Count(3));
        let metrics = Metrics {
            families: vec![calls, own],
        };
        let seen = metrics.of_tenant("acme");
        assert_eq!(seen.families.len(), 1);
        assert_eq!(seen.families[0].points.len(), 1);
        assert_eq!(seen.families[0].points[0].value, Value::Count(1));
        assert_eq!(metrics.of_tenant("nobody"), Metrics::default());
    }
}

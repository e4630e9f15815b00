//! The rate over time, like Figure 7 of the paper: a row per load, and the times of the event's
//! steps. Pure: samples in, SVG out.

use plotters::prelude::*;
use tollgate_benches::drawing::{BELOW, BLUE, CAPTION, Drawn, FONT, MARGIN, ORANGE, WIDTH, short};

use crate::model::{BUCKET_MS, EVENTS, Event, Sample};
use crate::recording::MS;

/// Height of a row, in pixels.
const HEIGHT: u32 = 190;
/// Height of the title, in pixels.
const HEAD: u32 = 34;
/// Width of the numbers on the left, in pixels.
const LEFT: u32 = 64;
/// Approximate width of a letter, in pixels.
const LETTER: f64 = 8.0;

/// A picture, and its event.
pub(crate) struct Picture {
    pub(crate) event: &'static Event,
    /// The content of the file.
    pub(crate) svg: String,
}

impl Picture {
    /// Its path, relative to the report.
    pub(crate) fn file(&self) -> String {
        format!("plots/event-{}.svg", self.event.name)
    }
}

/// All pictures with samples.
pub(crate) fn draw(samples: &[Sample]) -> Result<Vec<Picture>, String> {
    let mut pictures = Vec::new();
    for event in EVENTS {
        let of_it = samples
            .iter()
            .filter(|sample| sample.event == event && !sample.rates.is_empty());
        let of_it: Vec<_> = of_it.collect();
        if of_it.is_empty() {
            continue;
        }
        let svg = rows(event, &of_it);
        let svg = svg.map_err(|error| format!("cannot draw {}: {error}", event.name))?;
        pictures.push(Picture { event, svg });
    }
    Ok(pictures)
}

fn rows(event: &Event, samples: &[&Sample]) -> Drawn {
    let mut svg = String::new();
    {
        let height = HEAD + HEIGHT * samples.len() as u32;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let root = root.titled(event.title, CAPTION)?;
        let areas = root.split_evenly((samples.len(), 1));
        for (area, sample) in areas.iter().zip(samples) {
            row(area, sample)?;
        }
        root.present()?;
    }
    Ok(svg)
}

type Area<'s> = DrawingArea<SVGBackend<'s>, plotters::coord::Shift>;

fn row(area: &Area<'_>, sample: &Sample) -> Result<(), Box<dyn std::error::Error>> {
    let per_s = |count: &u32| f64::from(*count) * 1e3 / BUCKET_MS as f64;
    let rates: Vec<f64> = sample.rates.iter().map(per_s).collect();
    let end = (rates.len() as u64 * BUCKET_MS) as f64;
    let most = rates.iter().copied().fold(1.0, f64::max) * 1.2;
    let mut chart = ChartBuilder::on(area)
        .margin(MARGIN)
        .x_label_area_size(BELOW)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(9)
        .x_label_formatter(&|ms| format!("{ms}"))
        .x_desc(format!("ms; {}, calls/s", sample.share.name))
        .y_labels(5)
        .y_label_formatter(&|rate| short(&rate.round()))
        .label_style(FONT)
        .draw()?;
    let at = |ns: u64| ns as f64 / MS as f64;
    let ms_per_pixel = end / f64::from(WIDTH - LEFT - 2 * MARGIN);
    // Names that would overlap are left out.
    let mut free_from = 0.0;
    for mark in &sample.marks {
        let (from, to) = (at(mark.from_ns), at(mark.to_ns).min(end));
        let span = Rectangle::new([(from, 0.0), (to, most)], ORANGE.mix(0.25).filled());
        chart.draw_series([span])?;
        let begin = [(from, 0.0), (from, most)];
        chart.draw_series([PathElement::new(begin, ORANGE)])?;
        if from >= free_from {
            let place = (from + 2.0 * ms_per_pixel, most * 0.98);
            chart.draw_series([Text::new(mark.what.clone(), place, FONT)])?;
            free_from = from + (mark.what.len() + 1) as f64 * LETTER * ms_per_pixel;
        }
    }
    // Each rate is drawn over the time in which it was measured.
    let steps = rates.iter().enumerate().flat_map(|(bucket, rate)| {
        let from = bucket as f64 * BUCKET_MS as f64;
        [(from, *rate), (from + BUCKET_MS as f64, *rate)]
    });
    chart.draw_series(LineSeries::new(steps, BLUE.stroke_width(1)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::{SHARES, UPGRADE};
    use crate::recording::Mark;

    #[test]
    fn rates_are_drawn_with_what_happened() {
        let sample = |rates: Vec<u32>| {
            let mut sample = Sample::new(&UPGRADE, SHARES[1]);
            sample.rates = rates;
            sample.marks = vec![Mark {
                from_ns: 12 * MS,
                to_ns: 14 * MS,
                what: "upgraded".to_owned(),
            }];
            sample
        };
        assert!(draw(&[sample(Vec::new())]).unwrap().is_empty());
        let pictures = draw(&[sample(vec![100, 0, 120])]).unwrap();
        assert_eq!(pictures[0].file(), "plots/event-upgrade.svg");
        let svg = &pictures[0].svg;
        for text in ["upgraded", UPGRADE.title, "ms; 1 in flight, calls/s", "10k"] {
            assert!(
                svg.contains(&format!("\n{text}\n")),
                "{text} is not in {svg}"
            );
        }
        assert!(!svg.contains("NaN"), "{svg}");
    }
}

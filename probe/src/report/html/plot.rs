//! SVG plots: axes, lines, bars. Fractions from 0 to 1 are positions in the plot area.

use std::fmt::Write as _;

use super::escaped;
use crate::model::bench::{Spread, significant};

/// The plot area and its margins, in units of 480 in all. A screen of 420 pixels shows a unit as 0.8 pixels.
const WIDTH: f64 = 396.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 34.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 46.0;

/// How a doorbell mode is drawn: colour and marker identify it, so that colour alone need not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    colour: &'static str,
    marker: Marker,
    dashed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Marker {
    Circle,
    Square,
    Triangle,
}

impl Look {
    /// The look of a doorbell mode.
    pub(super) fn of(doorbell: &str, dashed: bool) -> Self {
        let (colour, marker) = match doorbell {
            "direct" => ("#1f6feb", Marker::Circle),
            "record" => ("#bf8700", Marker::Square),
            _ => ("#8250df", Marker::Triangle),
        };
        Self { colour, marker, dashed }
    }

    /// A sample for a legend.
    pub(super) fn sample(self) -> String {
        let line = self.polyline(&[(0.0, 8.0), (40.0, 8.0)]);
        let marker = self.mark(20.0, 8.0);
        format!("<svg width=\"40\" height=\"16\" aria-hidden=\"true\">{line}{marker}</svg>")
    }

    fn polyline(self, points: &[(f64, f64)]) -> String {
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dashes = if self.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        format!(
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dashes} points=\"{}\"/>",
            self.colour,
            path.join(" ")
        )
    }

    fn mark(self, x: f64, y: f64) -> String {
        let colour = self.colour;
        match self.marker {
            Marker::Circle => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"),
            Marker::Square => format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\" fill=\"{colour}\"/>",
                x - 3.5,
                y - 3.5
            ),
            Marker::Triangle => {
                let [left, right, top, bottom] = [x - 4.5, x + 4.5, y - 4.5, y + 4.0];
                format!(
                    "<polygon points=\"{left:.1},{bottom:.1} {right:.1},{bottom:.1} {x:.1},{top:.1}\" \
                     fill=\"{colour}\"/>"
                )
            }
        }
    }
}

/// A plot of lines.
pub(super) struct Plot(String);

impl Plot {
    /// A plot with these titles of its axes.
    pub(super) fn new(vertical: &str, horizontal: &str) -> Self {
        let mut out = frame(TOP + HEIGHT + BOTTOM, &format!("{vertical} over {horizontal}"));
        text(&mut out, 0.0, 14.0, "start", &format!("↑ {vertical}"));
        text(&mut out, LEFT + WIDTH, TOP + HEIGHT + 40.0, "end", &format!("{horizontal} →"));
        Self(out)
    }

    /// Horizontal lines of the grid at fractions of the height, with labels.
    pub(super) fn horizontal(&mut self, lines: impl Iterator<Item = (f64, String)>) {
        for (fraction, label) in lines {
            let y = height(fraction);
            grid(&mut self.0, (LEFT, y), (LEFT + WIDTH, y));
            text(&mut self.0, LEFT - 6.0, y + 4.5, "end", &label);
        }
    }

    /// Vertical lines of the grid at fractions of the width, with labels.
    pub(super) fn vertical(&mut self, lines: impl Iterator<Item = (f64, String)>) {
        for (fraction, label) in lines {
            let x = LEFT + WIDTH * fraction;
            grid(&mut self.0, (x, TOP), (x, TOP + HEIGHT));
            text(&mut self.0, x, TOP + HEIGHT + 19.0, "middle", &label);
        }
    }

    /// A line with markers through points of fractions.
    pub(super) fn line(&mut self, points: &[(f64, f64)], look: Look) {
        let points: Vec<_> = points.iter().map(|(x, y)| (LEFT + WIDTH * x, height(*y))).collect();
        self.0.push_str(&look.polyline(&points));
        points.iter().for_each(|(x, y)| self.0.push_str(&look.mark(*x, *y)));
    }

    /// A range at `x`, from `low` to `high`.
    pub(super) fn range(&mut self, x: f64, low: f64, high: f64) {
        let x = LEFT + WIDTH * x;
        let (low, high) = (height(low), height(high));
        let _ = write!(
            self.0,
            "<path stroke=\"#1f2328\" d=\"M{x:.1} {low:.1}V{high:.1}M{0:.1} {low:.1}h8M{0:.1} {high:.1}h8\"/>",
            x - 4.0
        );
    }

    /// The SVG element.
    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// Horizontal bars from 0 to `top`, each under its label; `title` names the unit.
pub(super) fn bars(title: &str, top: f64, bars: &[(String, Look, Spread)]) -> String {
    const EACH: f64 = 46.0;
    const AXIS: f64 = 44.0;
    // Room for the number at the end of a bar.
    let width = LEFT + WIDTH - 40.0;
    let bottom = EACH * bars.len() as f64;
    let mut out = frame(bottom + AXIS, title);
    for quarter in 0..=4 {
        let fraction = f64::from(quarter) / 4.0;
        let x = 1.0 + width * fraction;
        grid(&mut out, (x, 0.0), (x, bottom));
        let anchor = if quarter == 0 { "start" } else { "middle" };
        text(&mut out, x, bottom + 16.0, anchor, &number(top * fraction));
    }
    text(&mut out, width, bottom + 36.0, "end", &format!("{title} →"));
    for (index, (label, look, Spread { median, min, max })) in bars.iter().enumerate() {
        let y = EACH * index as f64 + 20.0;
        let length = |value: f64| width * (value / top).clamp(0.0, 1.0);
        text(&mut out, 4.0, y - 5.0, "start", label);
        let _ = write!(
            out,
            "<rect x=\"1\" y=\"{y}\" width=\"{:.1}\" height=\"16\" fill=\"{}\"/>\
             <path stroke=\"#1f2328\" d=\"M{low:.1} {middle}H{high:.1}M{low:.1} {above}v8M{high:.1} {above}v8\"/>",
            length(*median),
            look.colour,
            middle = y + 8.0,
            above = y + 4.0,
            low = 1.0 + length(*min),
            high = 1.0 + length(*max),
        );
        text(&mut out, length(*max) + 8.0, y + 13.0, "start", &number(*median));
    }
    out.push_str("</svg>\n");
    out
}

fn height(fraction: f64) -> f64 {
    TOP + HEIGHT * (1.0 - fraction.clamp(0.0, 1.0))
}

fn frame(height: f64, title: &str) -> String {
    let width = LEFT + WIDTH + RIGHT;
    let title = escaped(title);
    format!("<svg class=\"plot\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">")
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = escaped(text);
    let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

fn grid(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ =
        write!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#d0d7de\"/>");
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `value`.
pub(super) fn ceiling(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= value).unwrap_or(value)
}

/// The powers of ten around all of `values`.
pub(super) fn decades(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let log = |value: f64| value.max(1.0).log10();
    let low = values.clone().map(log).fold(f64::INFINITY, f64::min).floor();
    let low = if low.is_finite() { low } else { 0.0 };
    (low, values.map(log).fold(0.0, f64::max).ceil().max(low + 1.0))
}

/// Formats a number on an axis.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.2}").trim_end_matches('0').to_owned(),
        value => significant(value),
    }
}

/// Formats nanoseconds, a power of ten, with the unit that makes them short.
pub(super) fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        1e9.. => format!("{:.0} s", nanoseconds / 1e9),
        1e6.. => format!("{:.0} ms", nanoseconds / 1e6),
        1e3.. => format!("{:.0} µs", nanoseconds / 1e3),
        _ => format!("{nanoseconds:.0} ns"),
    }
}

/// Formats a size with binary units.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number_above_all_values() {
        assert_eq!([0.7, 1.0, 3.2, 612.0, 2001.0].map(ceiling), [1.0, 1.0, 5.0, 1000.0, 5000.0]);
    }

    #[test]
    fn a_logarithmic_scale_contains_all_values_and_is_never_empty() {
        assert_eq!(decades([40.0, 3_500_000.0].into_iter()), (1.0, 7.0));
        assert_eq!(decades([100.0].into_iter()), (2.0, 3.0));
        assert_eq!(decades(std::iter::empty()), (0.0, 1.0));
    }

    #[test]
    fn a_label_of_time_is_short_enough_for_the_margin() {
        let longest = (0..=11).map(|power| time(10_f64.powi(power)).chars().count()).max();
        assert_eq!(longest, Some(6), "60 units hold six characters of 13 units' height");
    }
}

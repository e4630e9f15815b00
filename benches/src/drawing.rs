//! The common look of all plots.

use std::error::Error;

use plotters::style::RGBColor;

/// A picture as SVG, or the reason why there is none.
pub type Drawn = Result<String, Box<dyn Error>>;

/// Width of a picture, in pixels.
pub const WIDTH: u32 = 760;
/// Font of labels.
pub const FONT: (&str, u32) = ("sans-serif", 14);
/// Font of a picture's title.
pub const CAPTION: (&str, u32) = ("sans-serif", 17);
/// Margin around everything, in pixels.
pub const MARGIN: u32 = 12;
/// Height of the axis below, including its name, in pixels.
pub const BELOW: u32 = 44;

// Colours that colour-blind people can tell apart (Okabe and Ito's palette).
/// See above.
pub const BLUE: RGBColor = RGBColor(0, 114, 178);
/// See above.
pub const SKY: RGBColor = RGBColor(86, 180, 233);
/// See above.
pub const GREEN: RGBColor = RGBColor(0, 158, 115);
/// See above.
pub const PURPLE: RGBColor = RGBColor(204, 121, 167);
/// See above.
pub const OCHRE: RGBColor = RGBColor(181, 159, 0);
/// See above.
pub const ORANGE: RGBColor = RGBColor(230, 159, 0);
/// See above.
pub const VERMILION: RGBColor = RGBColor(213, 94, 0);
/// See above.
pub const GREY: RGBColor = RGBColor(119, 119, 119);

/// The label of a tick: 1500000 is 1.5M.
pub fn short(value: &f64) -> String {
    match *value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        // 0.1 + 0.2 is not 0.3.
        value => format!("{}", (value * 1e6).round() / 1e6),
    }
}

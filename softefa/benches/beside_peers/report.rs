//! Medians, quartiles and ratios of series that were measured alternately.

/// The measurements of one candidate, one for each round.
pub(crate) struct Series {
    name: &'static str,
    values: Vec<f64>,
}

impl Series {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, values: Vec::new() }
    }

    pub(crate) fn push(&mut self, value: f64) {
        self.values.push(value);
    }
}

/// Prints both series, multiplied by `scale`, and their ratio round by round.
pub(crate) fn compare(title: &str, scale: f64, one: &Series, other: &Series) {
    println!("\n{title}");
    println!("{:<16} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "median", "lowest", "1/4", "3/4", "highest");
    for series in [one, other] {
        let scaled = series.values.iter().map(|value| value * scale).collect();
        print_line(series.name, scaled);
    }
    let ratios = one.values.iter().zip(&other.values).map(|(one, other)| one / other).collect();
    print_line("ratio", ratios);
}

fn print_line(name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        println!("{name:<16} was not measured");
        return;
    };
    let [median, lowest, first, third, highest] =
        [0.5, 0.0, 0.25, 0.75, 1.0].map(|part| values[(part * last as f64).round() as usize]);
    println!("{name:<16} {median:>10.3} {lowest:>10.3} {first:>10.3} {third:>10.3} {highest:>10.3}");
}

//! Extracts the code blocks of a README.

/// A README's code blocks of a language, in order.
pub fn blocks<'r>(readme: &'r str, language: &str) -> Vec<&'r str> {
    let fence = format!("```{language}\n");
    let begun = readme.split(&*fence).skip(1);
    begun
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect()
}

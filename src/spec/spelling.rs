//! The known name that a wrong one was meant to be.

use alloc::vec::Vec;

/// The name in `known` that is spelt most like `name`; none if no spelling is near.
///
/// Upper case and underscores do not count. A name is near if few letters differ, or if both begin
/// alike, as other frameworks' `padding` and ONNX's `pads` do.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    /// Letters at the beginning that make two names alike.
    const ALIKE: usize = 3;
    let given = letters(name);
    let near = known.iter().filter_map(|&other| {
        let letters = letters(other);
        let distance = distance(&given, &letters);
        let alike = given.iter().zip(&letters).take_while(|(a, b)| a == b).count();
        let is_near = 3 * distance <= given.len().max(letters.len()) || alike >= ALIKE;
        is_near.then_some((distance, other))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, other)| other)
}

fn letters(name: &str) -> Vec<char> {
    /// Letters of a name that are compared: more than any attribute has.
    const MOST: usize = 32;
    name.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).take(MOST).collect()
}

/// The number of letters that have to be added, left out or changed to make one word of the other
/// (Levenshtein's distance).
fn distance(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_words() {
        let of = |a: &str, b: &str| distance(&letters(a), &letters(b));
        let pairs =
            [("", "", 0), ("", "abc", 3), ("stride", "strides", 1), ("kitten", "sitting", 3), ("group", "group", 0)];
        for (a, b, expected) in pairs {
            assert_eq!((of(a, b), of(b, a)), (expected, expected), "{a} {b}");
        }
    }
}

//! Tunings as text.

use convoke::{Conv, Planner, Tuning};

/// What is parsed is written and parsed again as the same, and a plan can be made by it.
pub fn check(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    // Inputs without the first line are tried with it, too: few of them would have it.
    for text in [text.to_owned(), format!("convoke tuning 1\n{text}")] {
        let Ok(tuning) = text.parse::<Tuning>() else { continue };
        assert_eq!(tuning.to_string().parse().as_ref(), Ok(&tuning));
        let plan = Planner::new().tuning(tuning).plan::<f32>(Conv::new([4, 3, 3, 3]).pads([1; 4]), &[1, 3, 8, 8]);
        assert!(plan.is_ok());
    }
}

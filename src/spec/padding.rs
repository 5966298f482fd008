//! Turns `auto_pad`, `pads` and `output_shape` into explicit padding of each axis.

use core::{fmt, str::FromStr};

use super::axis::{Axis, UnpaddedAxis, wide};
use crate::error::{Error, bail};

/// The attribute `auto_pad`, which says how the padding is chosen.
///
/// | value | Conv | ConvTranspose without `output_shape` |
/// |---|---|---|
/// | `NotSet` | as `pads` says | as `pads` says |
/// | `Valid` | none | none |
/// | `SameUpper`, `SameLower` | output = ceil(input / stride) | output = input * stride |
///
/// If the total padding is odd, the extra element is at the end with `SameUpper`, and at the
/// beginning with `SameLower`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum AutoPad {
    /// ONNX `NOTSET`, the default: the padding is given by `pads`.
    #[default]
    NotSet,
    /// ONNX `VALID`: no padding.
    Valid,
    /// ONNX `SAME_UPPER`: the output size follows from the stride. If the padding is odd, the
    /// extra element is at the end.
    SameUpper,
    /// ONNX `SAME_LOWER`: the output size follows from the stride. If the padding is odd, the
    /// extra element is at the beginning.
    SameLower,
}

impl AutoPad {
    fn is_same(self) -> bool {
        matches!(self, AutoPad::SameUpper | AutoPad::SameLower)
    }
}

impl fmt::Display for AutoPad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AutoPad::NotSet => "NOTSET",
            AutoPad::Valid => "VALID",
            AutoPad::SameUpper => "SAME_UPPER",
            AutoPad::SameLower => "SAME_LOWER",
        })
    }
}

impl FromStr for AutoPad {
    type Err = Error;

    /// Parses ONNX's name, case-sensitive; the empty string is `NOTSET`.
    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "" | "NOTSET" => Ok(AutoPad::NotSet),
            "VALID" => Ok(AutoPad::Valid),
            "SAME_UPPER" => Ok(AutoPad::SameUpper),
            "SAME_LOWER" => Ok(AutoPad::SameLower),
            _ => bail!(
                InvalidAttribute,
                "auto_pad {name:?} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER (case-sensitive)"
            ),
        }
    }
}

/// Explicit padding of one axis, from the attribute `pads`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pads {
    pub(super) begin: usize,
    pub(super) end: usize,
}

impl Pads {
    /// Splits a total. If it is odd, the extra element goes to the end if `upper`, else to the
    /// beginning.
    fn split(total: usize, upper: bool) -> Self {
        let (less, more) = (total / 2, total - total / 2);
        if upper { Self { begin: less, end: more } } else { Self { begin: more, end: less } }
    }
}

/// One axis of Conv. `pads` only counts for `NOTSET`.
pub(super) fn conv_axis(unpadded: &UnpaddedAxis, auto_pad: AutoPad, pads: Pads) -> Result<Axis, Error> {
    let pads = match auto_pad {
        AutoPad::NotSet => pads,
        AutoPad::Valid => Pads::default(),
        AutoPad::SameUpper | AutoPad::SameLower => {
            Pads::split(unpadded.conv_same_total()?, auto_pad == AutoPad::SameUpper)
        }
    };
    unpadded.conv(pads.begin, pads.end)
}

/// One axis of ConvTranspose. `output_shape` has precedence over `auto_pad`. `pads` only counts
/// for `NOTSET` without `output_shape`.
pub(super) fn transposed_axis(
    unpadded: &UnpaddedAxis,
    auto_pad: AutoPad,
    pads: Pads,
    output_padding: usize,
    output_shape: Option<usize>,
) -> Result<Axis, Error> {
    let natural = unpadded.transposed_natural(output_padding)?;
    let wanted = match output_shape {
        Some(output) => {
            check_output_shape(unpadded, natural, output)?;
            Some(output)
        }
        None if auto_pad.is_same() => Some(unpadded.transposed_same_output()?),
        None => None,
    };
    let (output, pads) = match wanted {
        // Elements beyond the natural size are a tail that no input reaches, not negative
        // padding.
        Some(output) => {
            let surplus = usize::try_from((natural - wide(output)).max(0)).unwrap_or(usize::MAX);
            (output, Pads::split(surplus, auto_pad == AutoPad::SameUpper))
        }
        None => {
            let pads = if auto_pad == AutoPad::Valid { Pads::default() } else { pads };
            (unpadded.transposed_output(natural, pads.begin, pads.end)?, pads)
        }
    };
    if output == 0 {
        bail!(InvalidShape, "{}: output size 0 (auto_pad {auto_pad}) must be at least 1", unpadded.name());
    }
    unpadded.transposed(output, pads.begin, pads.end)
}

/// Checks that the output size exceeds the natural size by less than one stride.
fn check_output_shape(unpadded: &UnpaddedAxis, natural: i128, output: usize) -> Result<(), Error> {
    let limit = natural + wide(unpadded.stride) - 1;
    if wide(output) > limit {
        bail!(
            InvalidAttribute,
            "{}: output_shape {output} would need negative padding: the natural size is {natural}, and at most \
             {} (stride {} - 1) elements of tail are allowed, {} in all",
            unpadded.name(),
            unpadded.stride - 1,
            unpadded.stride,
            limit.max(0)
        );
    }
    Ok(())
}

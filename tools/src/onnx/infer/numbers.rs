//! Small tensors of numbers, from which models compute shapes.

use super::call::Call;
use super::fact::Numbers::{self, Floats, Ints};
use super::fact::{Fact, Known, MOST_NUMBERS, few, of_tensor};
use crate::onnx::proto::DataType;

/// The elements of a broadcasting operator's output. All inputs have the same number of elements,
/// or a single one.
pub(super) fn broadcast(op: &str, inputs: &[&Fact]) -> Option<Numbers> {
    let numbers: Vec<_> = inputs.iter().map(|input| input.numbers.as_ref()).collect::<Option<_>>()?;
    let len = numbers.iter().map(|numbers| numbers.len()).max()?;
    let stretch = |numbers: &&Numbers| match numbers.len() {
        1 => numbers.pick(std::iter::repeat_n(0, len)),
        _ => Some((*numbers).clone()),
    };
    match &numbers.iter().map(stretch).collect::<Option<Vec<_>>>()?[..] {
        [Ints(a), Ints(b)] => zip(a, b, |a, b| of_ints(op, a, b)).map(Ints),
        [Floats(a), Floats(b)] => zip(a, b, |a, b| of_floats(op, a, b)).map(Floats),
        [Ints(condition), Ints(a), Ints(b)] if op == "Where" => {
            let either = zip(a, b, |a, b| Some([b, a]))?;
            zip(condition, &either, |condition, either| Some(either[usize::from(condition != 0)])).map(Ints)
        }
        _ => None,
    }
}

fn zip<A: Copy, B: Copy, T>(a: &[A], b: &[B], f: impl Fn(A, B) -> Option<T>) -> Option<Vec<T>> {
    (a.len() == b.len()).then(|| a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect())?
}

fn of_ints(op: &str, a: i64, b: i64) -> Option<i64> {
    match op {
        "Add" => a.checked_add(b),
        "Sub" => a.checked_sub(b),
        "Mul" => a.checked_mul(b),
        "Div" => a.checked_div(b),
        "Max" => Some(a.max(b)),
        "Min" => Some(a.min(b)),
        "Equal" => Some((a == b).into()),
        "Greater" => Some((a > b).into()),
        "Less" => Some((a < b).into()),
        _ => None,
    }
}

/// f64 has more than twice the digits of the other types. So a result that is rounded to one of them
/// afterwards is the one that is computed in that type.
fn of_floats(op: &str, a: f64, b: f64) -> Option<f64> {
    match op {
        "Add" => Some(a + b),
        "Sub" => Some(a - b),
        "Mul" => Some(a * b),
        "Div" => Some(a / b),
        _ => None,
    }
}

pub(super) fn constant(call: &Call<'_>) -> Known {
    let [attribute] = &call.node.attribute[..] else { return Err(call.error("it must have one attribute")) };
    let (data_type, dims, numbers) = match (attribute.name.as_str(), &attribute.t) {
        ("value", Some(tensor)) => {
            return of_tensor(tensor).map_err(|rule| call.error(format_args!("its tensor {rule}")));
        }
        ("value_int", _) => (DataType::Int64, None, Some(Ints(vec![attribute.i]))),
        ("value_ints", _) => (DataType::Int64, Some(attribute.ints.len()), few(&attribute.ints).map(Ints)),
        ("value_float", _) => (DataType::Float, None, Some(Floats(vec![attribute.f.into()]))),
        ("value_floats", _) => (DataType::Float, Some(attribute.floats.len()), few(&attribute.floats).map(Floats)),
        (name, _) => return Err(call.open(format_args!("these tools do not read its attribute {name:?}"))),
    };
    Ok(call.fact(data_type as i32, dims.map(|len| Some(len as i64)))?.with(numbers))
}

pub(super) fn constant_of_shape(call: &Call<'_>) -> Known {
    let dims = call.needed_list("shape", 0)?;
    let value = call.attribute("value").and_then(|attribute| attribute.t.as_ref());
    let data_type = value.map_or(DataType::Float as i32, |tensor| tensor.data_type);
    let fact = call.fact(data_type, dims.into_iter().map(Some))?;
    let one = value.map_or(Some(Floats(vec![0.0])), Numbers::of_tensor);
    let len = usize::try_from(fact.len()).unwrap_or(usize::MAX);
    Ok(fact.with(one.and_then(|one| one.pick(std::iter::repeat_n(0, len)))))
}

pub(super) fn range(call: &Call<'_>) -> Known {
    let number = |index| match &call.input(index)?.numbers {
        Some(Ints(list)) if list.len() == 1 => Ok(list[0]),
        _ => Err(call.unknown_elements(index)),
    };
    let (start, limit, delta) = (number(0)?, number(1)?, number(2)?);
    if delta == 0 {
        return Err(call.error("its step is 0"));
    }
    let (start, limit, delta) = (i128::from(start), i128::from(limit), i128::from(delta));
    let count = ((limit - start + delta - delta.signum()) / delta).max(0);
    let fact = call.fact(call.input(0)?.data_type, [i64::try_from(count).ok()])?;
    let element = |index| (start + index * delta) as i64;
    let numbers = (count <= MOST_NUMBERS as i128).then(|| Ints((0..count).map(element).collect()));
    Ok(fact.with(numbers))
}

pub(super) fn shape(call: &Call<'_>) -> Known {
    let dims = &call.input(0)?.dims;
    let rank = dims.len() as i64;
    let end = |name, default| {
        let index = call.int(name, default);
        (if index < 0 { index.saturating_add(rank) } else { index }).clamp(0, rank) as usize
    };
    let (start, end) = (end("start", 0), end("end", rank));
    let part = dims.get(start..end).unwrap_or_default().to_vec();
    Ok(call.fact(DataType::Int64 as i32, [Some(part.len() as i64)])?.with(Some(Ints(part))))
}

pub(super) fn size(call: &Call<'_>) -> Known {
    let len = call.input(0)?.len();
    Ok(call.fact(DataType::Int64 as i32, [])?.with(Some(Ints(vec![len]))))
}

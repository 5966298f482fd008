//! What is known about a value: its type, its shape, and perhaps its elements.

use std::fmt;
use std::rc::Rc;

use Numbers::{Floats, Ints};
use convoke::{bf16, f16};

use crate::onnx::proto::{DataType, TensorProto};

/// Axes that a shape may have. Nothing has more, and a damaged model cannot ask for much memory.
pub(in crate::onnx) const MOST_AXES: usize = 16;

/// Elements that a tensor of numbers may have. Shapes have far fewer.
pub(super) const MOST_NUMBERS: usize = 64;

/// What is known about a value.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) struct Fact {
    /// ONNX's number of the element type; 0 if it is not known.
    pub(in crate::onnx) data_type: i32,
    /// The sizes, none of which is negative, and whose product is a number.
    pub(in crate::onnx) dims: Vec<i64>,
    /// The elements, row-major, if they are known and few.
    pub(in crate::onnx) numbers: Option<Numbers>,
}

/// Why the shape of a value is not known.
#[derive(Debug, Clone)]
pub(in crate::onnx) struct Unknown {
    /// The node, the operator and the rule.
    rule: Option<Rc<str>>,
    /// The sizes that the user can give.
    open: Option<Rc<str>>,
}

impl Unknown {
    pub(in crate::onnx) fn new(rule: &str) -> Self {
        Self { rule: Some(rule.into()), open: None }
    }

    /// A value of which the model leaves sizes open.
    pub(in crate::onnx) fn open(sizes: &str) -> Self {
        Self { rule: None, open: Some(sizes.into()) }
    }

    /// The same reason, with the open sizes of another one if it has none itself.
    pub(in crate::onnx) fn with_open(self, other: Self) -> Self {
        Self { open: self.open.or(other.open), ..self }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.rule.iter().chain(&self.open).map(|text| &**text).collect();
        f.write_str(&texts.join("; "))
    }
}

/// A value, or the reason why it is not known.
pub(in crate::onnx) type Known<T = Fact> = Result<T, Unknown>;

/// The elements of a small tensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) enum Numbers {
    /// Integers of any type, and truth values.
    Ints(Vec<i64>),
    /// Numbers of a float type, each rounded to that type, because models compute sizes with them.
    Floats(Vec<f64>),
}

impl Fact {
    /// A value of this shape, or the rule that the shape breaks.
    pub(in crate::onnx) fn new(data_type: i32, dims: Vec<i64>) -> Result<Self, String> {
        if dims.len() > MOST_AXES {
            return Err(format!("has {} axes, and {MOST_AXES} are the most that is read", dims.len()));
        }
        if dims.iter().any(|&size| size < 0) {
            return Err(format!("would have the shape {dims:?}, with a negative size"));
        }
        // A size of 0 must not hide that the others overflow.
        match dims.iter().try_fold(1_i64, |product, &size| product.checked_mul(size.max(1))) {
            Some(_) => Ok(Self { data_type, dims, numbers: None }),
            None => Err(format!("would have the shape {dims:?}, with more elements than a number can count")),
        }
    }

    /// The number of elements.
    pub(super) fn len(&self) -> i64 {
        self.dims.iter().product()
    }

    /// Elements that lie at `first` plus so many `strides`, as many as `dims` says.
    pub(super) fn view(&self, dims: &[i64], first: i64, strides: &[i64]) -> Option<Numbers> {
        let numbers = self.numbers.as_ref()?;
        // Products of few elements' sizes do not overflow.
        let count = dims.iter().try_fold(1_i64, |count, &size| count.checked_mul(size))?;
        if count > MOST_NUMBERS as i64 {
            return None;
        }
        let element = |mut index: i64| {
            let axes = dims.iter().zip(strides).rev();
            let offset = axes.fold(first, |offset, (size, stride)| {
                let step = index % size;
                index /= size;
                offset + step * stride
            });
            offset as usize
        };
        numbers.pick((0..count).map(element))
    }

    /// The distances between neighbours on each axis.
    pub(super) fn strides(&self) -> Vec<i64> {
        let mut strides: Vec<i64> = self
            .dims
            .iter()
            .rev()
            .scan(1, |next, &size| {
                let stride = *next;
                *next *= size;
                Some(stride)
            })
            .collect();
        strides.reverse();
        strides
    }

    /// The same with these elements, as they are in its element type.
    pub(super) fn with(mut self, numbers: Option<Numbers>) -> Self {
        let numbers = numbers.filter(|numbers| numbers.len() as i64 == self.len());
        self.numbers = numbers.and_then(|numbers| numbers.cast(self.data_type));
        self
    }
}

impl Numbers {
    /// The elements of a constant, if they are few, in this file, and of a type that shapes are
    /// computed in.
    pub(in crate::onnx) fn of_tensor(tensor: &TensorProto) -> Option<Self> {
        let TensorProto { raw_data: raw, float_data, int32_data, int64_data, .. } = tensor;
        if tensor.data_location != 0 || raw.len() > size_of::<i64>() * MOST_NUMBERS {
            return None;
        }
        Some(match (tensor.data_type(), raw.is_empty()) {
            (DataType::Float, true) => Floats(few(float_data)?),
            (DataType::Float, false) => Floats(elements(raw, |bytes| f32::from_le_bytes(bytes).into())?),
            (DataType::Int64, true) => Ints(few(int64_data)?),
            (DataType::Int64, false) => Ints(elements(raw, i64::from_le_bytes)?),
            (DataType::Int32 | DataType::Bool, true) => Ints(few(int32_data)?),
            (DataType::Int32, false) => Ints(elements(raw, |bytes| i32::from_le_bytes(bytes).into())?),
            (DataType::Bool, false) => Ints(raw.iter().map(|&byte| byte.into()).collect()),
            _ => return None,
        })
        .filter(|numbers| numbers.len() <= MOST_NUMBERS)
    }

    pub(in crate::onnx) fn len(&self) -> usize {
        match self {
            Ints(list) => list.len(),
            Floats(list) => list.len(),
        }
    }

    /// The elements of these numbers, if there is one for each.
    pub(in crate::onnx) fn pick(&self, mut indices: impl Iterator<Item = usize>) -> Option<Self> {
        match self {
            Ints(list) => indices.try_fold(Vec::new(), |all, index| push(all, *list.get(index)?)).map(Ints),
            Floats(list) => indices.try_fold(Vec::new(), |all, index| push(all, *list.get(index)?)).map(Floats),
        }
    }

    /// All elements one after the other, if they are of one kind and few.
    pub(in crate::onnx) fn joined<'a>(mut parts: impl Iterator<Item = Option<&'a Self>>) -> Option<Self> {
        let first = parts.next()??.clone();
        let join = |all: Self, part: Option<&Self>| match (all, part?) {
            (Ints(a), Ints(b)) => Some(Ints([&a[..], b].concat())),
            (Floats(a), Floats(b)) => Some(Floats([&a[..], b].concat())),
            _ => None,
        };
        parts.try_fold(first, |all, part| join(all, part).filter(|all| all.len() <= MOST_NUMBERS))
    }

    /// These numbers in another type, if it is one of numbers that can hold them.
    fn cast(self, data_type: i32) -> Option<Self> {
        let floats: fn(f64) -> f64 = match DataType::try_from(data_type).ok()? {
            DataType::Float => |v| f64::from(v as f32),
            DataType::Double => |v| v,
            DataType::Float16 => |v| f16::from_f64(v).into(),
            DataType::Bfloat16 => |v| bf16::from_f64(v).into(),
            DataType::Bool => {
                return Some(Ints(match self {
                    Ints(list) => list.into_iter().map(|v| (v != 0).into()).collect(),
                    Floats(list) => list.into_iter().map(|v| (v != 0.0).into()).collect(),
                }));
            }
            integer => return self.cast_to_ints(integer),
        };
        Some(Floats(match self {
            Ints(list) => list.into_iter().map(|v| floats(v as f64)).collect(),
            Floats(list) => list.into_iter().map(floats).collect(),
        }))
    }

    fn cast_to_ints(self, data_type: DataType) -> Option<Self> {
        let range = match data_type {
            DataType::Int8 => i8::MIN.into()..=i8::MAX.into(),
            DataType::Uint8 => 0..=u8::MAX.into(),
            DataType::Int16 => i16::MIN.into()..=i16::MAX.into(),
            DataType::Uint16 => 0..=u16::MAX.into(),
            DataType::Int32 => i32::MIN.into()..=i32::MAX.into(),
            DataType::Uint32 => 0..=u32::MAX.into(),
            DataType::Int64 => i64::MIN..=i64::MAX,
            DataType::Uint64 => 0..=i64::MAX,
            _ => return None,
        };
        // The end is 2^63, because i64::MAX is not an f64. Every comparison with NaN fails.
        let whole = |&v: &f64| (i64::MIN as f64..-(i64::MIN as f64)).contains(&v).then_some(v as i64);
        let list = match self {
            Ints(list) => list,
            Floats(list) => list.iter().map(whole).collect::<Option<_>>()?,
        };
        list.iter().all(|v| range.contains(v)).then_some(Ints(list))
    }

    /// The result of an operator of one input, if it is one that shapes are computed with.
    pub(in crate::onnx) fn unary(&self, op: &str) -> Option<Self> {
        Some(match (op, self) {
            // The type of the output says what a cast does.
            ("Identity" | "Dropout" | "Cast" | "CastLike", numbers) => numbers.clone(),
            ("Floor", Floats(list)) => Floats(list.iter().map(|v| v.floor()).collect()),
            ("Ceil", Floats(list)) => Floats(list.iter().map(|v| v.ceil()).collect()),
            ("Neg", Ints(list)) => Ints(list.iter().map(|v| v.checked_neg()).collect::<Option<_>>()?),
            ("Not", Ints(list)) => Ints(list.iter().map(|&v| (v == 0).into()).collect()),
            _ => return None,
        })
    }
}

fn push<T>(mut all: Vec<T>, element: T) -> Option<Vec<T>> {
    all.push(element);
    (all.len() <= MOST_NUMBERS).then_some(all)
}

/// A copy of a list, if it is short.
pub(super) fn few<T: Copy, U: From<T>>(list: &[T]) -> Option<Vec<U>> {
    (list.len() <= MOST_NUMBERS).then(|| list.iter().map(|&element| element.into()).collect())
}

fn elements<const BYTES: usize, T>(raw: &[u8], from_bytes: impl Fn([u8; BYTES]) -> T) -> Option<Vec<T>> {
    let (elements, rest) = raw.as_chunks::<BYTES>();
    rest.is_empty().then(|| elements.iter().map(|&bytes| from_bytes(bytes)).collect())
}

/// What a tensor of the model says.
pub(in crate::onnx) fn of_tensor(tensor: &TensorProto) -> Result<Fact, String> {
    Ok(Fact::new(tensor.data_type, tensor.dims.clone())?.with(Numbers::of_tensor(tensor)))
}

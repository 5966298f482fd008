//! Operators, from attributes by their ONNX names or from a struct.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};

use convoke::Attribute;

use crate::pointers::{self, Versioned};
use crate::status::{Error, Result, Status, fail, guard};

/// A Conv or a ConvTranspose: W's shape, and the attributes.
///
/// Values are checked when a plan is made for a shape of X. To set attributes, the handle must not
/// be in use by another thread.
pub struct Operator {
    op_type: String,
    opset: i64,
    w_dims: Vec<i64>,
    attributes: Vec<(String, Value)>,
    /// Of all this.
    pub(crate) operator: convoke::Operator,
}

/// The value of an attribute.
#[derive(Debug, Clone)]
enum Value {
    Int(i64),
    Ints(Vec<i64>),
    String(String),
}

impl Value {
    fn attribute(&self) -> Attribute<'_> {
        match self {
            Self::Int(value) => Attribute::Int(*value),
            Self::Ints(values) => Attribute::Ints(values),
            Self::String(value) => Attribute::String(value),
        }
    }
}

/// A list of integers of the caller.
///
/// `values` may be NULL if `len` is 0. In a convoke_operator_desc, NULL then means that the
/// attribute is absent, and a list of length 0 that is not NULL is an empty list, which is an error
/// of the operator.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ints {
    /// The integers.
    pub values: *const i64,
    /// Their number.
    pub len: usize,
}

/// Entries of a list, at most: more are a mistake, and would be copied.
const MOST_INTS: usize = 1 << 12;

impl Ints {
    /// # Safety
    /// As [`pointers::values`].
    pub(crate) unsafe fn get<'a>(self, name: &str) -> Result<&'a [i64]> {
        if self.len > MOST_INTS {
            fail!(InvalidArgument, "{name} has {} entries, more than {MOST_INTS}", self.len);
        }
        // SAFETY: the same.
        unsafe { pointers::values(name, self.values, self.len) }
    }
}

/// An operator with all its attributes, by their ONNX names. Attributes that are zero or NULL are
/// absent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OperatorDesc {
    /// sizeof(convoke_operator_desc).
    pub struct_size: usize,
    /// "Conv" or "ConvTranspose".
    pub op_type: *const c_char,
    /// The model's opset of the domain ai.onnx. 0 means 22.
    pub opset: i64,
    /// The shape of W: (M, C/group, k1, ...) for Conv, (C, M/group, k1, ...) for ConvTranspose.
    pub w_dims: Ints,
    /// One entry for each spatial axis. Absent: 1.
    pub strides: Ints,
    /// One entry for each spatial axis. Absent: 1.
    pub dilations: Ints,
    /// The beginnings of all spatial axes, then the ends of all. Absent: 0.
    pub pads: Ints,
    /// One entry for each spatial axis. W's shape says the same.
    pub kernel_shape: Ints,
    /// Of ConvTranspose: one entry for each spatial axis. Absent: 0.
    pub output_padding: Ints,
    /// Of ConvTranspose: one entry for each spatial axis.
    pub output_shape: Ints,
    /// "NOTSET", "VALID", "SAME_UPPER" or "SAME_LOWER". Absent: "NOTSET".
    pub auto_pad: *const c_char,
    /// Absent: 1.
    pub group: i64,
}

// SAFETY: `repr(C)`, with `struct_size` first; numbers and pointers.
unsafe impl Versioned for OperatorDesc {
    const NAME: &'static str = "convoke_operator_desc";
    const FIRST_BYTES: usize = offset_of!(Self, group) + size_of::<i64>();
}

impl Operator {
    fn new(op_type: &str, opset: i64, w_dims: &[i64], attributes: Vec<(String, Value)>) -> Result<Self> {
        let operator = made(op_type, opset, w_dims, &attributes)?;
        Ok(Self { op_type: op_type.into(), opset, w_dims: w_dims.into(), attributes, operator })
    }

    /// # Safety
    /// The pointers of the struct are the caller's, as its comments say.
    unsafe fn of_desc(desc: &OperatorDesc) -> Result<Self> {
        // SAFETY: the caller's texts.
        let (op_type, auto_pad) =
            unsafe { (pointers::text("op_type", desc.op_type)?, pointers::optional_text("auto_pad", desc.auto_pad)?) };
        // SAFETY: the caller's list.
        let w_dims = unsafe { desc.w_dims.get("w_dims")? };
        let mut attributes = Vec::new();
        let lists = [
            ("strides", desc.strides),
            ("dilations", desc.dilations),
            ("pads", desc.pads),
            ("kernel_shape", desc.kernel_shape),
            ("output_padding", desc.output_padding),
            ("output_shape", desc.output_shape),
        ];
        for (name, list) in lists {
            if !list.values.is_null() || list.len > 0 {
                // SAFETY: the caller's list.
                attributes.push((name.into(), Value::Ints(unsafe { list.get(name)? }.into())));
            }
        }
        attributes.extend(auto_pad.map(|value| ("auto_pad".into(), Value::String(value.into()))));
        if desc.group != 0 {
            attributes.push(("group".into(), Value::Int(desc.group)));
        }
        Self::new(op_type, if desc.opset == 0 { NEWEST_OPSET } else { desc.opset }, w_dims, attributes)
    }

    /// Adds an attribute; after an error the operator is as before.
    fn set(&mut self, name: &str, value: Value) -> Result<()> {
        self.attributes.push((name.into(), value));
        match made(&self.op_type, self.opset, &self.w_dims, &self.attributes) {
            Ok(operator) => self.operator = operator,
            Err(failure) => {
                self.attributes.pop();
                return Err(failure);
            }
        }
        Ok(())
    }
}

const NEWEST_OPSET: i64 = 22;

fn made(op_type: &str, opset: i64, w_dims: &[i64], attributes: &[(String, Value)]) -> Result<convoke::Operator> {
    let attributes: Vec<_> = attributes.iter().map(|(name, value)| (name.as_str(), value.attribute())).collect();
    Ok(convoke::Operator::from_attributes(op_type, opset, &attributes, w_dims)?)
}

/// Makes an operator without attributes, as a loader of models does. Set those that the node has.
///
/// @param op_type  "Conv" or "ConvTranspose".
/// @param opset    the model's opset of the domain ai.onnx, at least 1.
/// @param w_dims   the shape of W: (M, C/group, k1, ...) for Conv, (C, M/group, k1, ...) for
///                 ConvTranspose.
/// @param w_rank   the number of W's dimensions.
/// @param op     becomes the operator, or NULL if the call fails. The caller destroys it.
/// @param error  becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_operator_create(
    op_type: *const c_char,
    opset: i64,
    w_dims: *const i64,
    w_rank: usize,
    op: *mut *mut Operator,
    error: *mut Error,
) -> Status {
    let make = || {
        // SAFETY: the caller's pointers.
        let (op_type, w_dims) =
            unsafe { (pointers::text("op_type", op_type)?, Ints { values: w_dims, len: w_rank }.get("w_dims")?) };
        Operator::new(op_type, opset, w_dims, Vec::new())
    };
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("op", op, make)) }
}

/// Makes an operator with all its attributes.
///
/// @param desc   the operator and its attributes. They are copied.
/// @param op     becomes the operator, or NULL if the call fails. The caller destroys it.
/// @param error  becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_operator_create_from_desc(
    desc: *const OperatorDesc,
    op: *mut *mut Operator,
    error: *mut Error,
) -> Status {
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || pointers::hand_over("op", op, || Operator::of_desc(pointers::sized(desc, &mut room)?))) }
}

/// Sets an attribute.
///
/// # Safety
/// `op` must be null or an operator that no one else uses, `name` null or a text.
unsafe fn set(op: *mut Operator, name: *const c_char, value: impl FnOnce() -> Result<Value>) -> Result<()> {
    // SAFETY: the same.
    let name = unsafe { pointers::text("name", name)? };
    let value = value()?;
    // SAFETY: the same. The check is that of a shared reference.
    unsafe { pointers::value("op", op)? };
    // SAFETY: it is neither null nor misaligned, and nobody else uses it.
    unsafe { &mut *op }.set(name, value)
}

/// Sets an attribute of ONNX's type INT: "group".
///
/// To set one twice is an error, as it is in a model. If the call fails, the operator is as before.
///
/// @param op     no other thread may use it meanwhile.
/// @param name   the ONNX name.
/// @param value  the value.
/// @param error  becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_operator_set_int(
    op: *mut Operator,
    name: *const c_char,
    value: i64,
    error: *mut Error,
) -> Status {
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || set(op, name, || Ok(Value::Int(value)))) }
}

/// Sets an attribute of ONNX's type INTS: "strides", "dilations", "pads", "kernel_shape",
/// "output_padding", "output_shape".
///
/// An empty list is not the default: its length is wrong. See convoke_operator_set_int.
///
/// @param op     no other thread may use it meanwhile.
/// @param name   the ONNX name.
/// @param values the values, which are copied.
/// @param len    their number.
/// @param error  becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_operator_set_ints(
    op: *mut Operator,
    name: *const c_char,
    values: *const i64,
    len: usize,
    error: *mut Error,
) -> Status {
    // SAFETY: the caller's pointers.
    let ints = || unsafe { Ints { values, len }.get("values") }.map(|values| Value::Ints(values.into()));
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || set(op, name, ints)) }
}

/// Sets an attribute of ONNX's type STRING: "auto_pad".
///
/// See convoke_operator_set_int.
///
/// @param op     no other thread may use it meanwhile.
/// @param name   the ONNX name.
/// @param value  the text, with a zero at its end. It is copied.
/// @param error  becomes the reason of a failure; may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_operator_set_string(
    op: *mut Operator,
    name: *const c_char,
    value: *const c_char,
    error: *mut Error,
) -> Status {
    // SAFETY: the caller's pointers.
    let text = || unsafe { pointers::text("value", value) }.map(|value| Value::String(value.into()));
    // SAFETY: the caller's pointers.
    unsafe { guard(error, || set(op, name, text)) }
}

/// Destroys an operator. Plans that were made of it stay. NULL is allowed.
///
/// It must be one of this library, which is destroyed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn convoke_operator_destroy(op: *mut Operator) {
    // SAFETY: the same.
    unsafe { pointers::destroy(op) };
}

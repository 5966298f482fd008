//! The reader of ONNX test folders.

mod common;

use std::fs;
use std::path::Path;

use common::{Folder, cast, floats, ints};
use convoke::{DType, bf16, f16};
use convoke_tools::onnx::proto::{AttributeProto, DataType};
use convoke_tools::onnx::{self, Elements, Model, OnnxTensor};
use prost::Message;

const TYPES: [(DataType, DType); 4] = [
    (DataType::Float16, DType::F16),
    (DataType::Bfloat16, DType::BF16),
    (DataType::Float, DType::F32),
    (DataType::Double, DType::F64),
];

/// Loads a folder with a test, and passes its only case to `look`.
fn with_case(folder: &Folder, look: impl FnOnce(&onnx::OnnxCase<'_>)) {
    let dir = tempfile::tempdir().unwrap();
    folder.write(dir.path());
    let model = Model::load(dir.path()).unwrap().expect("a Conv or ConvTranspose");
    let cases = model.cases().unwrap();
    assert_eq!(cases.len(), 1);
    look(&cases[0]);
}

#[test]
fn inputs_in_files() {
    with_case(&Folder::conv(), |case| {
        assert_eq!((case.op_type(), case.opset(), case.name.as_str()), ("Conv", 22, "test_data_set_0"));
        assert_eq!(case.inputs[1].as_ref().unwrap().slice::<f32>().unwrap(), [1.0, 10.0]);
        let (_, geometry) = case.operator().unwrap();
        assert_eq!((geometry.output_shape(), geometry.axes[0].pad_end), (vec![1, 1, 4], 1));
    });
}

#[test]
fn initializers_of_every_type() {
    for (proto, dtype) in TYPES {
        with_case(&Folder::conv().cast(proto), |case| {
            for tensor in case.inputs.iter().flatten().chain([&case.expected]) {
                assert_eq!(tensor.dtype(), dtype);
            }
            assert_eq!(case.inputs.len(), 3);
            case.operator().unwrap();
        });
    }
}

#[test]
fn raw_data_equals_typed_data() {
    let values = [1.0, -2.5, f32::INFINITY, 0.0];
    for (to, _) in TYPES {
        let typed = cast(&floats("t", &[2, 2], &values), to);
        let raw_data = match OnnxTensor::from_proto(&typed).unwrap().elements {
            Elements::F16(v) => v.iter().flat_map(|v: &f16| v.to_le_bytes()).collect::<Vec<u8>>(),
            Elements::BF16(v) => v.iter().flat_map(|v: &bf16| v.to_le_bytes()).collect(),
            Elements::F32(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Elements::F64(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        let mut raw = typed.clone();
        (raw.raw_data, raw.float_data, raw.int32_data, raw.double_data) = (raw_data, vec![], vec![], vec![]);
        assert_eq!(OnnxTensor::from_proto(&raw).unwrap(), OnnxTensor::from_proto(&typed).unwrap());
        raw.raw_data.pop();
        assert!(OnnxTensor::from_proto(&raw).unwrap_err().to_string().contains("whole number"));
    }
}

#[test]
fn an_empty_input_name_is_an_absent_input() {
    let mut folder = Folder::conv();
    folder.inputs[2].name.clear();
    folder.fed = 2;
    let mut model = onnx::proto::ModelProto::decode(folder.model().as_slice()).unwrap();
    let graph = model.graph.as_mut().unwrap();
    graph.initializer.clear();
    graph.input.truncate(2);
    let dir = tempfile::tempdir().unwrap();
    folder.write(dir.path());
    let model = Model::decode(dir.path(), &model.encode_to_vec()).unwrap().unwrap();
    assert_eq!(model.cases().unwrap()[0].inputs[2], None);
}

#[test]
fn attributes_without_a_type_are_read_by_content() {
    let mut folder = Folder::conv();
    let untyped = |attribute: AttributeProto| AttributeProto { r#type: 0, ..attribute };
    let auto_pad = AttributeProto { name: "auto_pad".into(), s: b"SAME_LOWER".to_vec(), ..AttributeProto::default() };
    let group = AttributeProto { name: "group".into(), i: 1, ..AttributeProto::default() };
    folder.attributes = vec![untyped(ints("strides", &[2])), auto_pad, group];
    with_case(&folder, |case| assert_eq!(case.operator().unwrap().1.output_shape(), [1, 1, 2]));
}

#[test]
fn what_the_operator_rejects_is_an_error() {
    let mut folder = Folder::conv();
    folder.attributes = vec![ints("strides", &[0])];
    with_case(&folder, |case| assert!(case.operator().unwrap_err().to_string().contains("strides")));
    let mut folder = Folder::conv();
    folder.attributes = vec![ints("stride", &[1])];
    with_case(&folder, |case| assert!(case.operator().unwrap_err().to_string().contains("stride")));
}

#[test]
fn other_models_are_none() {
    let mut folder = Folder::conv();
    folder.op_type = "MaxPool";
    assert!(Model::decode(Path::new(""), &folder.model()).unwrap().is_none());
}

#[test]
fn malformed_files_are_errors_that_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let error = |model: &Model| format!("{:#}", model.cases().unwrap_err());
    let set = dir.path().join("test_data_set_0");
    Folder::conv().write(dir.path());
    let model = Model::load(dir.path()).unwrap().unwrap();

    fs::write(set.join("input_1.pb"), floats("w", &[1, 1, 3], &[1.0, 10.0]).encode_to_vec()).unwrap();
    assert!(error(&model).contains("input_1.pb") && error(&model).contains("2 elements for the shape [1, 1, 3]"));
    fs::write(set.join("input_1.pb"), floats("w", &[1, -1, 2], &[1.0, 10.0]).encode_to_vec()).unwrap();
    assert!(error(&model).contains("negative"));
    fs::write(set.join("input_1.pb"), floats("w", &[1 << 40, 1 << 40, 2], &[1.0]).encode_to_vec()).unwrap();
    assert!(error(&model).contains("input_1.pb"));
    let int8 = onnx::proto::TensorProto { data_type: 3, ..floats("w", &[0], &[]) };
    fs::write(set.join("input_1.pb"), int8.encode_to_vec()).unwrap();
    assert!(error(&model).contains("element type 3"));
    fs::remove_file(set.join("input_1.pb")).unwrap();
    assert!(error(&model).contains("input_1.pb"));
    fs::remove_dir_all(&set).unwrap();
    assert!(error(&model).contains("no test_data_set_"));

    fs::write(dir.path().join("model.onnx"), b"\xff\xff\xff").unwrap();
    assert!(format!("{:#}", Model::load(dir.path()).unwrap_err()).contains("model.onnx"));
}

#[test]
fn folders_are_found_at_any_depth_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b/c", "a", "b/a"] {
        Folder::conv().write(&dir.path().join(name));
    }
    let found = onnx::find(dir.path()).unwrap();
    assert_eq!(found, ["a", "b/a", "b/c"].map(|name| dir.path().join(name)));
    assert!(onnx::find(&dir.path().join("nowhere")).is_err());
}

//! The provider as onnxruntime sees it: a factory, a provider for each session, and a function for
//! each layer.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use convoke::{DType, bf16, f16};
use ort_sys::{
    OrtAllocator, OrtApi, OrtApiBase, OrtEpDevice, OrtGraph, OrtHardwareDevice, OrtHardwareDeviceType,
    OrtKernelContext, OrtKeyValuePairs, OrtLogger, OrtMemoryInfo, OrtNode, OrtSessionOptions, OrtStatusPtr,
};

use crate::abi::{
    API_VERSION, Ep, EpApi, EpFactory, FIRST_RELEASE, GraphSupportInfo, NodeComputeContext, NodeComputeInfo,
    NodeFusionOptions,
};
use crate::api::{Api, Failure, Level, Log, Result, status};
use crate::claims::{Claim, claim_of_all, claims};
use crate::concat;
use crate::fusion::title;
use crate::graph::{Graph, Node};
use crate::layer::{self, Inputs, Layer, Packing, on_threads};
use crate::options::{NAME, Options};
use crate::pointers::{list, required, take, text};
use crate::region::{self, RegionPacking};
use crate::run::Run;
use crate::session::Session;
use crate::weights::Scalar;

const VENDOR: &CStr = c"convoke";
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version with a zero"),
};

/// Releases that give layers in two branches of a model the same name, and then refuse the model.
const WITHOUT_BRANCHES: [&str; 4] = ["1.24.0", "1.24.1", "1.24.2", "1.24.3"];

const OK: OrtStatusPtr = OrtStatusPtr(null_mut());

/// What onnxruntime knows as an [`EpFactory`]: that is its first member.
#[repr(C)]
struct Factory {
    base: EpFactory,
    api: Api,
}

/// What onnxruntime knows as an [`Ep`]: that is its first member.
#[repr(C)]
struct Provider {
    base: Ep,
    api: Api,
    session: Arc<Session>,
}

/// What onnxruntime knows as a [`NodeComputeInfo`]: that is its first member.
#[repr(C)]
struct Compiled {
    base: NodeComputeInfo,
    api: Api,
    layer: Box<dyn Layer>,
}

/// Makes the factory.
///
/// # Safety
/// onnxruntime calls it when the library is registered, with pointers as its C interface says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "system" fn CreateEpFactories(
    _registered_name: *const c_char,
    base: *const OrtApiBase,
    _logger: *const OrtLogger,
    factories: *mut *mut EpFactory,
    most: usize,
    made: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: onnxruntime's table of versions, whose functions any version has.
    let (ort, release) = unsafe { (((*base).GetApi)(API_VERSION), text(((*base).GetVersionString)())) };
    // SAFETY: null, or a table that lives as long as the process.
    let Some(ort) = (unsafe { ort.as_ref() }) else {
        // The first members of the table, which make statuses, are those of every version.
        // SAFETY: as above.
        let oldest: Option<&OrtApi> = unsafe { ((*base).GetApi)(1).as_ref() };
        let failure = Failure::invalid(format_args!(
            "this provider needs onnxruntime {FIRST_RELEASE} or newer (version {API_VERSION} of its C interface), and this is {release}"
        ));
        return oldest.map_or(OK, |ort| status(ort, &failure));
    };
    // SAFETY: the table of this version, of which `EpApi` is the beginning.
    let Some(ep) = (unsafe { (ort.GetEpApi)().cast::<EpApi>().as_ref() }) else {
        return status(ort, &Failure::invalid("this onnxruntime is built without execution providers as plugins"));
    };
    let api = Api { ort, ep, fuses_in_branches: !WITHOUT_BRANCHES.contains(&&*release) };
    api.guard(|| {
        if most < 1 {
            return Err(Failure::other("no room for a factory"));
        }
        let factory = Box::new(Factory { base: FACTORY, api });
        // SAFETY: onnxruntime gives room for `most` factories, and for their number.
        unsafe {
            *factories = Box::into_raw(factory).cast();
            *made = 1;
        }
        Ok(())
    })
}

/// Frees the factory.
///
/// # Safety
/// onnxruntime calls it once, with what [`CreateEpFactories`] made.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "system" fn ReleaseEpFactory(factory: *mut EpFactory) -> OrtStatusPtr {
    // SAFETY: as promised, it is a `Factory` from a box.
    drop(unsafe { take(factory.cast::<Factory>()) });
    OK
}

// --- The factory --------------------------------------------------------------------------------

const FACTORY: EpFactory = EpFactory {
    ort_version_supported: API_VERSION,
    GetName: factory_name,
    GetVendor: factory_vendor,
    GetSupportedDevices: supported_devices,
    CreateEp: create_provider,
    ReleaseEp: release_provider,
    GetVendorId: vendor_id,
    GetVersion: version,
    ValidateCompiledModelCompatibilityInfo: None,
    CreateAllocator: no_allocator,
    ReleaseAllocator: release_no_allocator,
    CreateDataTransfer: no_data_transfer,
    IsStreamAware: is_stream_aware,
    CreateSyncStreamForDevice: None,
    GetHardwareDeviceIncompatibilityDetails: None,
    CreateExternalResourceImporterForDevice: None,
    GetNumCustomOpDomains: None,
    GetCustomOpDomains: None,
};

extern "system" fn factory_name(_: *const EpFactory) -> *const c_char {
    NAME.as_ptr()
}

extern "system" fn factory_vendor(_: *const EpFactory) -> *const c_char {
    VENDOR.as_ptr()
}

/// It is that of PCI, which a library has none of.
extern "system" fn vendor_id(_: *const EpFactory) -> u32 {
    0
}

extern "system" fn version(_: *const EpFactory) -> *const c_char {
    VERSION.as_ptr()
}

extern "system" fn is_stream_aware(_: *const EpFactory) -> bool {
    false
}

/// Tensors are in onnxruntime's own memory.
///
/// # Safety
/// onnxruntime calls it.
unsafe extern "system" fn no_allocator(
    _: *mut EpFactory,
    _: *const OrtMemoryInfo,
    _: *const OrtKeyValuePairs,
    out: *mut *mut OrtAllocator,
) -> OrtStatusPtr {
    // SAFETY: onnxruntime gives room for the result.
    unsafe { *out = null_mut() };
    OK
}

extern "system" fn release_no_allocator(_: *mut EpFactory, _: *mut OrtAllocator) {}

/// # Safety
/// onnxruntime calls it.
unsafe extern "system" fn no_data_transfer(_: *mut EpFactory, out: *mut *mut c_void) -> OrtStatusPtr {
    // SAFETY: onnxruntime gives room for the result.
    unsafe { *out = null_mut() };
    OK
}

/// The CPU.
///
/// # Safety
/// onnxruntime calls it, with a factory of this library.
unsafe extern "system" fn supported_devices(
    factory: *mut EpFactory,
    devices: *const *const OrtHardwareDevice,
    count: usize,
    out: *mut *mut OrtEpDevice,
    most: usize,
    made: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: as promised.
    let api = unsafe { (*factory.cast::<Factory>()).api };
    api.guard(|| {
        // SAFETY: onnxruntime gives room for the number.
        unsafe { *made = 0 };
        // SAFETY: a C enumeration is returned as an `i32`. A newer onnxruntime may return types that
        // the Rust enumeration lacks.
        let kind_of: unsafe extern "system" fn(*const OrtHardwareDevice) -> i32 =
            unsafe { std::mem::transmute(api.ort.HardwareDevice_Type) };
        // SAFETY: the number of devices is onnxruntime's.
        for &device in unsafe { list(devices, count, "devices")? } {
            // SAFETY: the device lives.
            let kind = unsafe { kind_of(device) };
            // SAFETY: there is room for `most` devices.
            unsafe {
                if kind == OrtHardwareDeviceType::OrtHardwareDeviceType_CPU as i32 && *made < most {
                    api.check((api.ep.CreateEpDevice)(factory, device, null(), null(), out.add(*made)))?;
                    *made += 1;
                }
            }
        }
        Ok(())
    })
}

/// # Safety
/// onnxruntime calls it, with a factory of this library.
unsafe extern "system" fn create_provider(
    factory: *mut EpFactory,
    _devices: *const *const OrtHardwareDevice,
    _metadata: *const *const OrtKeyValuePairs,
    _count: usize,
    options: *const OrtSessionOptions,
    logger: *const OrtLogger,
    out: *mut *mut Ep,
) -> OrtStatusPtr {
    // SAFETY: as promised.
    let api = unsafe { (*factory.cast::<Factory>()).api };
    api.guard(|| {
        // SAFETY: the options live for the call.
        let options = Options::parse(&unsafe { config_entries(api, options) }?)?;
        // SAFETY: the session's logger outlives its provider.
        let log = unsafe { Log::new(api, required(logger, "logger")?, options.log_level) };
        let provider = Box::new(Provider {
            base: Ep {
                ort_version_supported: API_VERSION,
                GetName: provider_name,
                GetCapability: capability,
                Compile: compile,
                ReleaseNodeComputeInfos: release_compiled,
                GetPreferredDataLayout: None,
                ShouldConvertDataLayoutForOp: None,
                SetDynamicOptions: None,
                OnRunStart: None,
                OnRunEnd: None,
                CreateAllocator: None,
                CreateSyncStreamForDevice: None,
                GetCompiledModelCompatibilityInfo: None,
                GetKernelRegistry: None,
                IsConcurrentRunSupported: None,
            },
            api,
            session: Arc::new(Session::new(options, log)?),
        });
        // SAFETY: onnxruntime gives room for the result.
        unsafe { *out = Box::into_raw(provider).cast() };
        Ok(())
    })
}

/// The configuration of a session.
///
/// # Safety
/// The options must live for the call.
unsafe fn config_entries(api: Api, options: *const OrtSessionOptions) -> Result<BTreeMap<String, String>> {
    let (mut pairs, mut keys, mut values, mut count) = (null_mut(), null(), null(), 0);
    // SAFETY: as promised.
    api.check(unsafe { (api.ort.GetSessionOptionsConfigEntries)(options, &mut pairs) })?;
    let pairs = required(pairs, "configuration")?.as_ptr();
    // SAFETY: the pairs are this function's, until it releases them. Keys and values are C strings
    // of theirs, as many as onnxruntime says.
    unsafe {
        (api.ort.GetKeyValuePairs)(pairs, &mut keys, &mut values, &mut count);
        let lists = list(keys, count, "keys").and_then(|keys| Ok((keys, list(values, count, "values")?)));
        let entries = lists
            .map(|(keys, values)| keys.iter().zip(values).map(|(key, value)| (text(*key), text(*value))).collect());
        (api.ort.ReleaseKeyValuePairs)(pairs);
        entries
    }
}

/// # Safety
/// onnxruntime calls it once, with what [`create_provider`] made.
unsafe extern "system" fn release_provider(_: *mut EpFactory, provider: *mut Ep) {
    // SAFETY: as promised, it is a `Provider` from a box.
    drop(unsafe { take(provider.cast::<Provider>()) });
}

// --- The provider of a session ------------------------------------------------------------------

extern "system" fn provider_name(_: *const Ep) -> *const c_char {
    NAME.as_ptr()
}

/// Claims the layers of a graph.
///
/// # Safety
/// onnxruntime calls it, with a provider of this library.
unsafe extern "system" fn capability(
    provider: *mut Ep,
    graph: *const OrtGraph,
    info: *mut GraphSupportInfo,
) -> OrtStatusPtr {
    // SAFETY: as promised.
    let Provider { api, session, .. } = unsafe { &*provider.cast::<Provider>() };
    api.guard(|| {
        // SAFETY: the graph lives for the call.
        let graph = unsafe { Graph::new(*api, required(graph, "graph")?) };
        if !api.fuses_in_branches && graph.is_nested()? {
            return Ok(());
        }
        let nodes = graph.nodes()?;
        let mut tell = |level: Level, node: Node<'_>, what: String| {
            let title = title(node, &[node])?;
            session.log().write(level, || format!("{title} {what}"));
            Ok(())
        };
        for claim in claims(&nodes, &|region| region::is_worthwhile(session, region), &mut tell)? {
            let nodes: Vec<*const OrtNode> = claim.nodes().into_iter().map(Node::as_ptr).collect();
            let drop_constant_initializers = !claim.reads_constants_in_runs()?;
            let options = NodeFusionOptions { ort_version_supported: API_VERSION, drop_constant_initializers };
            // SAFETY: the nodes are of the graph, which lives for the call as `info` does.
            let fused =
                unsafe { (api.ep.EpGraphSupportInfo_AddNodesToFuse)(info, nodes.as_ptr(), nodes.len(), &options) };
            api.check(fused)?;
        }
        Ok(())
    })
}

/// Compiles the layers that [`capability`] claimed.
///
/// # Safety
/// onnxruntime calls it, with a provider of this library.
unsafe extern "system" fn compile(
    provider: *mut Ep,
    graphs: *const *const OrtGraph,
    fused_nodes: *const *const OrtNode,
    count: usize,
    infos: *mut *mut NodeComputeInfo,
    _ep_context_nodes: *mut *mut OrtNode,
) -> OrtStatusPtr {
    // SAFETY: as promised.
    let Provider { api, session, .. } = unsafe { &*provider.cast::<Provider>() };
    api.guard(|| {
        // SAFETY: there are `count` graphs and nodes.
        let (graphs, fused_nodes) =
            unsafe { (list(graphs, count, "graphs")?, list(fused_nodes, count, "fused nodes")?) };
        let (mut layers, mut regions) = (Vec::new(), Vec::new());
        for (&graph, &fused) in graphs.iter().zip(fused_nodes) {
            // SAFETY: both live for the call.
            let (graph, fused) = unsafe {
                (Graph::new(*api, required(graph, "graph")?), Node::new(*api, required(fused, "fused node")?))
            };
            match read_layer(session, graph, fused)? {
                ReadNode::Layer(packing) => layers.push(packing),
                ReadNode::Region(packing) => regions.push((layers.len(), packing)),
            }
        }
        // Threads share the layers of all nodes, and then those of each region.
        let threads = session.compiling_threads();
        let mut layers = on_threads(layers, threads)?;
        for (i, (before, packing)) in regions.into_iter().enumerate() {
            layers.insert(before + i, packing(threads)?);
        }
        session.save_tuning()?;
        session.log().write(Level::Info, || format!("{count} fused nodes are convoke's"));
        for (i, layer) in layers.into_iter().enumerate() {
            let compiled = Box::new(Compiled {
                base: NodeComputeInfo {
                    ort_version_supported: API_VERSION,
                    CreateState: create_state,
                    Compute: compute,
                    ReleaseState: release_state,
                },
                api: *api,
                layer,
            });
            // SAFETY: onnxruntime gives room for `count` results.
            unsafe { *infos.add(i) = Box::into_raw(compiled).cast() };
        }
        Ok(())
    })
}

/// A fused node that is read, and not yet packed.
enum ReadNode<'g> {
    Layer(Packing<'g>),
    Region(RegionPacking<'g>),
}

/// Reads a fused node. The nodes of its graph are those that [`capability`] claimed.
fn read_layer<'g>(session: &Arc<Session>, graph: Graph<'g>, fused: Node<'g>) -> Result<ReadNode<'g>> {
    let (claim, inputs) = (claim_of_all(&graph.nodes()?, session)?, Inputs::of(fused)?);
    if let Claim::Region(region) = &claim {
        return Ok(ReadNode::Region(region::read(session, region, fused, &inputs)?));
    }
    let packing = match claim.dtype() {
        DType::F32 => read_as::<f32>(session, &claim, &inputs),
        DType::F64 => read_as::<f64>(session, &claim, &inputs),
        DType::F16 => read_as::<f16>(session, &claim, &inputs),
        DType::BF16 => read_as::<bf16>(session, &claim, &inputs),
    };
    Ok(ReadNode::Layer(packing?))
}

fn read_as<'g, T: Scalar>(session: &Arc<Session>, claim: &Claim<'g>, inputs: &Inputs) -> Result<Packing<'g>> {
    match claim {
        Claim::Layer(fusion) => layer::read::<T>(session, fusion, inputs),
        Claim::Concat(concat) => concat::read::<T>(session, concat, inputs),
        Claim::Lrn(lrn) => lrn.read(session, inputs),
        Claim::Region(_) => Err(Failure::other("a region is one of floats")),
    }
}

/// # Safety
/// onnxruntime calls it once for each layer, with what [`compile`] made.
unsafe extern "system" fn release_compiled(_: *mut Ep, infos: *mut *mut NodeComputeInfo, count: usize) {
    // SAFETY: as promised.
    for &info in unsafe { list(infos.cast_const(), count, "layers") }.unwrap_or_default() {
        // SAFETY: as promised, each is a `Compiled` from a box.
        drop(unsafe { take(info.cast::<Compiled>()) });
    }
}

// --- A layer ------------------------------------------------------------------------------------

/// Layers have no state of a session besides themselves.
///
/// # Safety
/// onnxruntime calls it.
unsafe extern "system" fn create_state(
    info: *mut NodeComputeInfo,
    _context: *mut NodeComputeContext,
    state: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: onnxruntime gives room for the result.
    unsafe { *state = info.cast() };
    OK
}

extern "system" fn release_state(_: *mut NodeComputeInfo, _: *mut c_void) {}

/// Computes one run of a layer.
///
/// # Safety
/// onnxruntime calls it, with a layer of this library.
unsafe extern "system" fn compute(
    info: *mut NodeComputeInfo,
    _state: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: as promised.
    let Compiled { api, layer, .. } = unsafe { &*info.cast::<Compiled>() };
    api.guard(|| {
        // SAFETY: the context lives for the call.
        layer.run(unsafe { Run::new(*api, required(context.cast_const(), "context")?) })
    })
}

//! The structures of onnxruntime's C interface for plugin execution providers that `ort-sys`
//! leaves out, as of API version 24.
//!
//! Each begins with the version that it was made for. Later versions only append members, and
//! onnxruntime reads none that the version lacks.
//!
//! Source: `onnxruntime_ep_c_api.h` of onnxruntime.
#![allow(non_snake_case, reason = "the names of the C interface")]

use std::ffi::{c_char, c_void};
use std::mem::offset_of;

use ort_sys::{
    OrtAllocator, OrtEpDevice, OrtGraph, OrtHardwareDevice, OrtKernelContext, OrtKeyValuePairs, OrtLogger,
    OrtMemoryInfo, OrtNode, OrtSessionOptions, OrtStatusPtr,
};

/// The version of the interface, and the oldest that suffices: version 23 lacks
/// `GetTensorElementTypeAndShapeDataReference`, by which shapes are read without an allocation in
/// every run, and `Session_GetEpGraphAssignmentInfo`, by which a user sees which nodes run where.
pub(crate) const API_VERSION: u32 = 24;
/// The first release that has it.
pub(crate) const FIRST_RELEASE: &str = "1.24";

/// A function that onnxruntime may call, but that this provider does not have.
type Absent = Option<unsafe extern "system" fn()>;

/// `OrtEpGraphSupportInfo`.
#[repr(C)]
pub(crate) struct GraphSupportInfo {
    _opaque: [u8; 0],
}

/// `OrtNodeComputeContext`.
#[repr(C)]
pub(crate) struct NodeComputeContext {
    _opaque: [u8; 0],
}

/// The first functions of `OrtEpApi`.
#[repr(C)]
pub(crate) struct EpApi {
    pub(crate) CreateEpDevice: unsafe extern "system" fn(
        factory: *mut EpFactory,
        device: *const OrtHardwareDevice,
        metadata: *const OrtKeyValuePairs,
        options: *const OrtKeyValuePairs,
        out: *mut *mut OrtEpDevice,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseEpDevice: unsafe extern "system" fn(device: *mut OrtEpDevice),
    pub(crate) EpGraphSupportInfo_AddNodesToFuse: unsafe extern "system" fn(
        info: *mut GraphSupportInfo,
        nodes: *const *const OrtNode,
        count: usize,
        options: *const NodeFusionOptions,
    ) -> OrtStatusPtr,
}

/// `OrtNodeFusionOptions`.
#[repr(C)]
pub(crate) struct NodeFusionOptions {
    pub(crate) ort_version_supported: u32,
    /// Whether onnxruntime may free the constants, because the provider keeps what it needs.
    pub(crate) drop_constant_initializers: bool,
}

/// `OrtNodeComputeInfo`.
#[repr(C)]
pub(crate) struct NodeComputeInfo {
    pub(crate) ort_version_supported: u32,
    pub(crate) CreateState: unsafe extern "system" fn(
        this: *mut NodeComputeInfo,
        context: *mut NodeComputeContext,
        state: *mut *mut c_void,
    ) -> OrtStatusPtr,
    pub(crate) Compute: unsafe extern "system" fn(
        this: *mut NodeComputeInfo,
        state: *mut c_void,
        context: *mut OrtKernelContext,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseState: unsafe extern "system" fn(this: *mut NodeComputeInfo, state: *mut c_void),
}

/// `OrtEp`.
#[repr(C)]
pub(crate) struct Ep {
    pub(crate) ort_version_supported: u32,
    pub(crate) GetName: unsafe extern "system" fn(this: *const Ep) -> *const c_char,
    pub(crate) GetCapability:
        unsafe extern "system" fn(this: *mut Ep, graph: *const OrtGraph, info: *mut GraphSupportInfo) -> OrtStatusPtr,
    pub(crate) Compile: unsafe extern "system" fn(
        this: *mut Ep,
        graphs: *const *const OrtGraph,
        fused_nodes: *const *const OrtNode,
        count: usize,
        infos: *mut *mut NodeComputeInfo,
        ep_context_nodes: *mut *mut OrtNode,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseNodeComputeInfos:
        unsafe extern "system" fn(this: *mut Ep, infos: *mut *mut NodeComputeInfo, count: usize),
    pub(crate) GetPreferredDataLayout: Absent,
    pub(crate) ShouldConvertDataLayoutForOp: Absent,
    pub(crate) SetDynamicOptions: Absent,
    pub(crate) OnRunStart: Absent,
    pub(crate) OnRunEnd: Absent,
    pub(crate) CreateAllocator: Absent,
    pub(crate) CreateSyncStreamForDevice: Absent,
    pub(crate) GetCompiledModelCompatibilityInfo: Absent,
    pub(crate) GetKernelRegistry: Absent,
    pub(crate) IsConcurrentRunSupported: Absent,
}

/// `OrtEpFactory`.
#[repr(C)]
pub(crate) struct EpFactory {
    pub(crate) ort_version_supported: u32,
    pub(crate) GetName: unsafe extern "system" fn(this: *const EpFactory) -> *const c_char,
    pub(crate) GetVendor: unsafe extern "system" fn(this: *const EpFactory) -> *const c_char,
    pub(crate) GetSupportedDevices: unsafe extern "system" fn(
        this: *mut EpFactory,
        devices: *const *const OrtHardwareDevice,
        count: usize,
        out: *mut *mut OrtEpDevice,
        most: usize,
        made: *mut usize,
    ) -> OrtStatusPtr,
    pub(crate) CreateEp: unsafe extern "system" fn(
        this: *mut EpFactory,
        devices: *const *const OrtHardwareDevice,
        metadata: *const *const OrtKeyValuePairs,
        count: usize,
        options: *const OrtSessionOptions,
        logger: *const OrtLogger,
        out: *mut *mut Ep,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseEp: unsafe extern "system" fn(this: *mut EpFactory, ep: *mut Ep),
    pub(crate) GetVendorId: unsafe extern "system" fn(this: *const EpFactory) -> u32,
    pub(crate) GetVersion: unsafe extern "system" fn(this: *const EpFactory) -> *const c_char,
    pub(crate) ValidateCompiledModelCompatibilityInfo: Absent,
    /// This and the next three are called without a check whether they are there.
    pub(crate) CreateAllocator: unsafe extern "system" fn(
        this: *mut EpFactory,
        info: *const OrtMemoryInfo,
        options: *const OrtKeyValuePairs,
        out: *mut *mut OrtAllocator,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseAllocator: unsafe extern "system" fn(this: *mut EpFactory, allocator: *mut OrtAllocator),
    pub(crate) CreateDataTransfer:
        unsafe extern "system" fn(this: *mut EpFactory, out: *mut *mut c_void) -> OrtStatusPtr,
    pub(crate) IsStreamAware: unsafe extern "system" fn(this: *const EpFactory) -> bool,
    pub(crate) CreateSyncStreamForDevice: Absent,
    pub(crate) GetHardwareDeviceIncompatibilityDetails: Absent,
    pub(crate) CreateExternalResourceImporterForDevice: Absent,
    pub(crate) GetNumCustomOpDomains: Absent,
    pub(crate) GetCustomOpDomains: Absent,
}

/// Number of the pointer-sized slot at an offset. The version takes the first one.
const fn slot(offset: usize) -> usize {
    offset / size_of::<usize>()
}

// The places that the header gives these members.
const _: () = {
    assert!(slot(size_of::<EpApi>()) == 3);
    assert!(size_of::<NodeFusionOptions>() == 8 && offset_of!(NodeFusionOptions, drop_constant_initializers) == 4);
    assert!(slot(size_of::<NodeComputeInfo>()) == 4 && slot(offset_of!(NodeComputeInfo, Compute)) == 2);
    assert!(slot(offset_of!(Ep, Compile)) == 3 && slot(offset_of!(Ep, ReleaseNodeComputeInfos)) == 4);
    assert!(slot(offset_of!(Ep, GetKernelRegistry)) == 13 && slot(size_of::<Ep>()) == 15);
    assert!(slot(offset_of!(EpFactory, CreateEp)) == 4 && slot(offset_of!(EpFactory, GetVersion)) == 7);
    assert!(slot(offset_of!(EpFactory, CreateDataTransfer)) == 11 && slot(offset_of!(EpFactory, IsStreamAware)) == 12);
    assert!(slot(size_of::<EpFactory>()) == 18);
};

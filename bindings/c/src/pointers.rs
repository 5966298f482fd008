//! Pointers of the caller: checked for null and alignment, and for overlaps.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use crate::status::{Failure, Result, Status, fail};

/// Checks that a pointer can be one to a value of its type.
#[inline]
fn check<T>(name: &str, pointer: *const T) -> Result<()> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(wrong(name, pointer.addr(), align_of::<T>()));
    }
    Ok(())
}

/// What is wrong with an address. It is apart, so that the checks are small enough to be inlined.
#[cold]
fn wrong(name: &str, address: usize, alignment: usize) -> Failure {
    let what = match address {
        0 => format!("{name} is NULL"),
        _ => format!("{name} is at an address that is not a multiple of {alignment}"),
    };
    Failure::new(Status::InvalidPointer, what)
}

/// What is wrong with a number of elements.
#[cold]
fn too_long(name: &str, len: usize, size: usize) -> Failure {
    Failure::new(Status::Overflow, format!("{name} has {len} elements of {size} bytes, more than the address space"))
}

/// A value of the caller.
///
/// # Safety
/// The pointer must be null, or point to such a value, which nobody changes in `'a`.
pub(crate) unsafe fn value<'a, T>(name: &str, pointer: *const T) -> Result<&'a T> {
    check(name, pointer)?;
    // SAFETY: the caller's, and neither null nor misaligned.
    Ok(unsafe { &*pointer })
}

/// Writes a value to memory of the caller.
///
/// # Safety
/// The pointer must be null, or point to memory for such a value that may be written.
pub(crate) unsafe fn write<T>(name: &str, pointer: *mut T, value: T) -> Result<()> {
    check(name, pointer)?;
    // SAFETY: the caller's, and neither null nor misaligned.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Hands a new handle to the caller, or null if it cannot be made.
///
/// # Safety
/// As [`write`].
pub(crate) unsafe fn hand_over<T>(name: &str, out: *mut *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: the same. It is checked before anything is made, so that nothing is lost.
    unsafe { write(name, out, ptr::null_mut())? };
    let handle = Box::into_raw(Box::new(make()?));
    // SAFETY: the same.
    unsafe { write(name, out, handle) }
}

/// Destroys a handle. Null is allowed.
///
/// # Safety
/// It must be null or one of [`hand_over`], which is destroyed once.
pub(crate) unsafe fn destroy<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: `hand_over` made it of a box.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Checks memory of `len` values. Without values any pointer will do, also null. Returns the
/// pointer, or one that no value is behind.
#[inline]
pub(crate) fn checked<T>(name: &str, pointer: *const T, len: usize) -> Result<*const T> {
    if len == 0 {
        return Ok(ptr::dangling());
    }
    check(name, pointer)?;
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize && pointer.addr().checked_add(bytes).is_some() => Ok(pointer),
        _ => Err(too_long(name, len, size_of::<T>())),
    }
}

/// Values of the caller.
///
/// # Safety
/// Unless the pointer is null or `len` is 0, it must point to `len` such values, which nobody
/// changes in `'a`.
pub(crate) unsafe fn values<'a, T>(name: &str, pointer: *const T, len: usize) -> Result<&'a [T]> {
    let pointer = checked(name, pointer, len)?;
    // SAFETY: the caller's, not misaligned, and not too long.
    Ok(unsafe { slice::from_raw_parts(pointer, len) })
}

/// Memory of the caller, to be written.
///
/// # Safety
/// Unless the pointer is null or `len` is 0, it must point to memory of `len` such values, which
/// nobody else uses in `'a`.
pub(crate) unsafe fn memory<'a, T>(name: &str, pointer: *mut T, len: usize) -> Result<&'a mut [MaybeUninit<T>]> {
    let pointer = checked(name, pointer, len)?;
    // SAFETY: the caller's, not misaligned, and not too long.
    Ok(unsafe { slice::from_raw_parts_mut(pointer.cast_mut().cast(), len) })
}

/// The values that memory holds.
///
/// # Safety
/// All of it must hold values.
pub(crate) unsafe fn initialised<T>(memory: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: the same.
    unsafe { slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), memory.len()) }
}

/// As [`checked`], for bytes at a multiple of an alignment.
#[inline]
pub(crate) fn checked_bytes(name: &str, pointer: *mut u8, len: usize, alignment: usize) -> Result<*mut u8> {
    let pointer = checked(name, pointer, len)?.cast_mut();
    if len > 0 && !pointer.addr().is_multiple_of(alignment) {
        return Err(wrong(name, pointer.addr(), alignment));
    }
    Ok(pointer)
}

/// Scratch memory of the caller, whose bytes need not be initialised: they get values, which are
/// any.
///
/// # Safety
/// The pointer must be one of [`checked_bytes`] for `len` bytes, to memory of the caller that
/// nobody else uses in `'a`.
#[inline]
pub(crate) unsafe fn scratch<'a>(pointer: *mut u8, len: usize) -> &'a mut [u8] {
    // A slice of bytes that nobody has initialised is undefined behaviour, and to zero them in each
    // run would take longer than some layers. The compiler has to assume that this assembly writes
    // all bytes behind the address that it is given. It is empty, so that they keep what they hold.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: there are no instructions.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) pointer, options(nostack, preserves_flags));
    }
    // Not all targets have stable assembly.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the caller's memory, which may be written.
    unsafe {
        pointer.write_bytes(0, len);
    }
    // SAFETY: the caller's memory, which nobody else uses, and initialised above.
    unsafe { slice::from_raw_parts_mut(pointer, len) }
}

/// A text of the caller.
///
/// # Safety
/// The pointer must be null, or point to a text that ends with a zero, which nobody changes in
/// `'a`.
pub(crate) unsafe fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str> {
    check(name, pointer)?;
    // SAFETY: the caller's, and not null.
    match unsafe { CStr::from_ptr(pointer) }.to_str() {
        Ok(text) => Ok(text),
        Err(_) => fail!(InvalidArgument, "{name} is not UTF-8"),
    }
}

/// A text of the caller, or none for null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(name: &str, pointer: *const c_char) -> Result<Option<&'a str>> {
    // SAFETY: the same.
    if pointer.is_null() { Ok(None) } else { unsafe { text(name, pointer) }.map(Some) }
}

/// A struct of the interface whose first field, `struct_size`, says how many bytes of it the
/// caller's version has.
///
/// # Safety
/// The struct is `repr(C)`, its first field is a `usize`, and any bytes are a value of it.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in C.
    const NAME: &'static str;

    /// The end of the last field of the first released version. It stays when fields are added, so
    /// that programs with an older header go on.
    const FIRST_BYTES: usize;

    /// The end of its last field, which is also its size. A struct that grows says it for itself.
    const BYTES: usize = Self::FIRST_BYTES;
}

/// The caller's `struct_size`, if it is that of a version of the struct.
///
/// # Safety
/// The pointer must be null, or one to a struct whose first field can be read.
unsafe fn struct_size<T: Versioned>(pointer: *const T) -> Result<usize> {
    // Without padding at the end of any version. Callers need not zero it, and a later version
    // would take it for a field.
    const { assert!(T::FIRST_BYTES.is_multiple_of(align_of::<T>()), "the first version ends in padding") };
    const { assert!(T::BYTES == size_of::<T>(), "the struct has grown: set BYTES, and let no padding follow") };
    check(T::NAME, pointer)?;
    // SAFETY: the first field of the caller's struct.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size < T::FIRST_BYTES {
        let (name, needed) = (T::NAME, size_of::<T>());
        fail!(InvalidArgument, "{name}: struct_size is {size}, it must be sizeof({name}), which is {needed}");
    }
    if size > MOST_STRUCT_BYTES {
        let (name, needed) = (T::NAME, size_of::<T>());
        fail!(
            InvalidArgument,
            "{name}: struct_size is {size}, it must be sizeof({name}), which is {needed}: is it set?"
        );
    }
    Ok(size)
}

/// More bytes than any version of a struct will have: such a `struct_size` was never set.
const MOST_STRUCT_BYTES: usize = 4096;

/// A struct of the caller. The fields that an earlier version of it lacks are zero. Those that a
/// later version has more must be zero, because this version does not know them. A struct of
/// another version is copied to `room`.
///
/// # Safety
/// The pointer must be null, or point to `struct_size` bytes that nobody changes while the
/// reference lives, and `struct_size` to its first field.
#[inline]
pub(crate) unsafe fn sized<T: Versioned>(pointer: *const T, room: &mut MaybeUninit<T>) -> Result<&T> {
    // SAFETY: the caller's struct.
    let size = unsafe { struct_size(pointer)? };
    if size == size_of::<T>() {
        // SAFETY: the caller says that there are so many bytes, and any are a value.
        return Ok(unsafe { &*pointer });
    }
    // SAFETY: the same.
    unsafe { copied(pointer, size, room) }
}

/// A struct of another version.
///
/// # Safety
/// As [`sized`].
#[cold]
unsafe fn copied<T: Versioned>(pointer: *const T, size: usize, room: &mut MaybeUninit<T>) -> Result<&T> {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller says that there are so many bytes.
    let more = unsafe { values(T::NAME, pointer.cast::<u8>().add(known), size - known)? };
    if more.iter().any(|byte| *byte != 0) {
        fail!(InvalidArgument, "{}: a field is set that this version of the library does not have", T::NAME);
    }
    *room = MaybeUninit::zeroed();
    // SAFETY: both have so many bytes, and zeros or the caller's bytes are a value.
    unsafe {
        ptr::copy_nonoverlapping(pointer.cast::<u8>(), room.as_mut_ptr().cast(), known);
        Ok(room.assume_init_ref())
    }
}

/// Writes a struct of the caller, who has set its `struct_size`: the fields that the caller's
/// version has. Those that a later version has more become zero.
///
/// # Safety
/// The pointer must be null, or point to `struct_size` bytes that may be written.
pub(crate) unsafe fn write_sized<T: Versioned>(pointer: *mut T, value: impl FnOnce(usize) -> Result<T>) -> Result<()> {
    // SAFETY: the caller's struct.
    let size = unsafe { struct_size(pointer)? };
    let (value, known) = (value(size)?, size.min(size_of::<T>()));
    // SAFETY: the caller says that so many bytes may be written.
    unsafe {
        ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), pointer.cast(), known);
        pointer.cast::<u8>().add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// The addresses of some memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    begin: usize,
    end: usize,
}

impl Extent {
    #[inline]
    pub(crate) fn new<T>(pointer: *const T, len: usize) -> Self {
        Self { begin: pointer.addr(), end: pointer.addr().saturating_add(len.saturating_mul(size_of::<T>())) }
    }

    #[inline]
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.begin.max(other.begin) < self.end.min(other.end)
    }

    /// The same memory so many bytes further on, or back.
    pub(crate) fn moved(self, bytes: isize) -> Self {
        Self { begin: self.begin.saturating_add_signed(bytes), end: self.end.saturating_add_signed(bytes) }
    }
}

/// Checks that memory that is written is not some other memory.
#[inline]
pub(crate) fn check_apart(written: (&str, Extent), other: (&str, Extent)) -> Result<()> {
    if written.1.overlaps(other.1) { Err(overlapping(written.0, other.0)) } else { Ok(()) }
}

#[cold]
fn overlapping(written: &str, other: &str) -> Failure {
    Failure::new(Status::InvalidPointer, format!("{written} overlaps {other}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_overlaps_where_it_shares_a_byte() {
        let extent = |begin: usize, bytes: usize| Extent::new(ptr::without_provenance::<u8>(begin), bytes);
        let overlaps = |a: Extent, b: Extent| {
            assert_eq!(a.overlaps(b), b.overlaps(a));
            a.overlaps(b)
        };
        assert!(overlaps(extent(100, 8), extent(107, 1)) && overlaps(extent(100, 8), extent(96, 64)));
        assert!(!overlaps(extent(100, 8), extent(108, 8)) && !overlaps(extent(100, 8), extent(104, 0)));
        assert!(
            overlaps(extent(100, 8).moved(8), extent(108, 8)) && !overlaps(extent(100, 8).moved(-8), extent(100, 8))
        );
        assert!(!overlaps(extent(usize::MAX - 7, 8), extent(0, 8)));
        assert!(overlaps(extent(100, usize::MAX), extent(usize::MAX - 1, 1)));
    }

    /// As the library has it: its first version had no `b`.
    #[repr(C)]
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Known {
        struct_size: usize,
        a: usize,
        b: usize,
    }

    // SAFETY: as the trait asks.
    unsafe impl Versioned for Known {
        const NAME: &'static str = "known";
        const FIRST_BYTES: usize = 2 * size_of::<usize>();
        const BYTES: usize = 3 * size_of::<usize>();
    }

    /// What is read of a caller's struct of some fields, and what is written to it.
    fn read_and_written(fields: &[usize]) -> Option<(Known, Vec<usize>)> {
        let mut theirs = fields.to_vec();
        let pointer = theirs.as_mut_ptr().cast::<Known>();
        let mut room = MaybeUninit::uninit();
        // SAFETY: the memory has the bytes that its first value says, or is refused.
        unsafe {
            let read = *sized(pointer, &mut room).ok()?;
            write_sized(pointer, |struct_size| Ok(Known { struct_size, a: 8, b: 9 })).unwrap();
            Some((read, theirs))
        }
    }

    #[test]
    fn structs_of_other_versions_are_read_and_written_as_far_as_both_know_them() {
        let bytes = |fields: usize| fields * size_of::<usize>();
        let earlier = Known { struct_size: bytes(2), a: 1, b: 0 };
        assert_eq!(read_and_written(&[bytes(2), 1]), Some((earlier, vec![bytes(2), 8])));
        let same = Known { struct_size: bytes(3), a: 1, b: 2 };
        assert_eq!(read_and_written(&[bytes(3), 1, 2]), Some((same, vec![bytes(3), 8, 9])));
        let later = Known { struct_size: bytes(4), a: 1, b: 2 };
        assert_eq!(read_and_written(&[bytes(4), 1, 2, 0]), Some((later, vec![bytes(4), 8, 9, 0])));
        assert_eq!(read_and_written(&[bytes(4), 1, 2, 1]), None);
        assert_eq!(read_and_written(&[bytes(2) - 1, 1]), None);
    }

    /// A struct of the interface as a later version of the library has it, with one field more.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Grown<T> {
        known: T,
        more: usize,
    }

    // SAFETY: as the trait asks, because it is so of T.
    unsafe impl<T: Versioned> Versioned for Grown<T> {
        const NAME: &'static str = T::NAME;
        const FIRST_BYTES: usize = T::FIRST_BYTES;
        const BYTES: usize = size_of::<Self>();
    }

    /// Reads and writes a struct of a program that was built with the header of the first version.
    fn check_oldest<T: Versioned>() {
        let first = T::FIRST_BYTES;
        let mut theirs = vec![usize::MAX; first / size_of::<usize>()];
        theirs[0] = first;
        let (pointer, mut room) = (theirs.as_mut_ptr().cast::<Grown<T>>(), MaybeUninit::uninit());
        // SAFETY: the memory has the bytes that its first value says.
        let read = unsafe { sized(pointer, &mut room) };
        let read = read.unwrap_or_else(|failure| panic!("{}: {failure:?}", T::NAME));
        assert_eq!(read.more, 0, "{}", T::NAME);
        // SAFETY: all of these bytes were read, and T has no padding among them.
        let known = unsafe { slice::from_raw_parts((&raw const read.known).cast::<usize>(), theirs.len()) };
        assert_eq!(known, theirs, "{}", T::NAME);
        // SAFETY: any bytes are a value.
        let later = Grown { known: unsafe { MaybeUninit::<T>::zeroed().assume_init() }, more: 1 };
        // SAFETY: as above.
        unsafe { write_sized(pointer, |_| Ok(later)).unwrap() };
        assert!(theirs.iter().all(|word| *word == 0), "{}", T::NAME);
        theirs[0] = first - 1;
        let mut room = MaybeUninit::uninit();
        // SAFETY: as above.
        assert!(unsafe { sized(theirs.as_ptr().cast::<Grown<T>>(), &mut room) }.is_err());
    }

    /// Sizes of `convoke.h` 0.1.0, on 64 bits: programs that were built with it have these.
    #[test]
    fn structs_of_the_oldest_header_stay_valid() {
        use crate::{Executor, OperatorDesc, PackArgs, PlanInfo, PlanOptions, RunArgs};
        use crate::{QuantisedPackArgs, QuantisedRunArgs, Scales};
        check_oldest::<Executor>();
        check_oldest::<OperatorDesc>();
        check_oldest::<PackArgs>();
        check_oldest::<PlanInfo>();
        check_oldest::<PlanOptions>();
        check_oldest::<RunArgs>();
        check_oldest::<QuantisedPackArgs>();
        check_oldest::<QuantisedRunArgs>();
        check_oldest::<Scales>();
        if cfg!(target_pointer_width = "64") {
            let first = [
                Executor::FIRST_BYTES,
                OperatorDesc::FIRST_BYTES,
                PackArgs::FIRST_BYTES,
                PlanInfo::FIRST_BYTES,
                PlanOptions::FIRST_BYTES,
                RunArgs::FIRST_BYTES,
                QuantisedPackArgs::FIRST_BYTES,
                QuantisedRunArgs::FIRST_BYTES,
                Scales::FIRST_BYTES,
            ];
            assert_eq!(first, [32, 152, 56, 112, 80, 112, 56, 80, 40]);
        }
    }
}

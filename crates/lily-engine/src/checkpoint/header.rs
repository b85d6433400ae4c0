//! The safetensors header: eight bytes of length, a JSON table of tensors, then their bytes without gaps.
//!
//! Nothing in the header is trusted: every tensor's range must match its shape, and all ranges together must tile the
//! rest of the file exactly, so that a range that passed can be sliced without another check.

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::CheckpointError;

/// Bytes of the length field.
const PREFIX_BYTES: usize = 8;
/// Longest header that the format allows.
const HEADER_BYTES_MAX: usize = 100_000_000;
/// Key of free-form text in the header.
const METADATA: &str = "__metadata__";

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorEntry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) dims: Vec<usize>,
    /// Bytes of the tensor, counted from the start of the file.
    pub(super) range: Range<usize>,
}

/// What the JSON says of one tensor.
#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// The header's entries in file order, repeated names included (a JSON map type would swallow them).
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a table of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(RawHeader(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Parses and validates the header of `content`, the whole file; entries come in order of their bytes.
pub(super) fn parse(file: &str, content: &[u8]) -> Result<Vec<TensorEntry>, CheckpointError> {
    let text = header_text(file, content)?;
    let data_start = PREFIX_BYTES + text.len();
    let RawHeader(raw) = serde_json::from_slice(text)
        .map_err(|e| header_error(file, "header", "a JSON table of tensors", e.to_string()))?;

    let mut entries = Vec::with_capacity(raw.len());
    for (name, tensor) in raw {
        let [begin, end] = tensor.data_offsets;
        let subject = || format!("tensor `{name}`");
        if begin > end {
            return Err(header_error(file, subject(), "offsets that do not run backwards", format!("{begin}..{end}")));
        }
        let wanted = tensor_bytes(tensor.dtype, &tensor.shape);
        if wanted != Some(end - begin) {
            let wanted = wanted.map_or("a size that fits in memory".to_owned(), |bytes| format!("{bytes} bytes"));
            let expected = format!("{wanted} for {} {:?}", tensor.dtype, tensor.shape);
            return Err(header_error(file, subject(), expected, format!("offsets of {} bytes", end - begin)));
        }
        entries.push((name, tensor, begin..end));
    }
    check_names(file, &entries)?;
    entries.sort_by_key(|(_, _, range)| (range.start, range.end));
    check_tiling(file, &entries, data_start, content.len())?;
    let to_entry = |(name, tensor, range): (String, RawTensor, Range<usize>)| TensorEntry {
        name,
        dtype: tensor.dtype,
        dims: tensor.shape,
        range: data_start + range.start..data_start + range.end,
    };
    Ok(entries.into_iter().map(to_entry).collect())
}

/// The JSON between the length field and the data.
fn header_text<'a>(file: &str, content: &'a [u8]) -> Result<&'a [u8], CheckpointError> {
    let Some((prefix, rest)) = content.split_first_chunk::<PREFIX_BYTES>() else {
        let found = format!("only {} bytes", content.len());
        return Err(CheckpointError::NotSafetensors { file: file.to_owned(), found });
    };
    let length = u64::from_le_bytes(*prefix);
    if rest.first() != Some(&b'{') {
        let found = format!("a file that starts with {:?}", String::from_utf8_lossy(&content[..content.len().min(16)]));
        return Err(CheckpointError::NotSafetensors { file: file.to_owned(), found });
    }
    let limit = rest.len().min(HEADER_BYTES_MAX);
    match usize::try_from(length) {
        Ok(length) if length <= limit => Ok(&rest[..length]),
        _ => {
            let expected = format!("a header of at most {limit} bytes in a file of {}", content.len());
            Err(header_error(file, "header", expected, format!("a length field of {length}")))
        }
    }
}

fn tensor_bytes(dtype: Dtype, dims: &[usize]) -> Option<usize> {
    let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

fn check_names(file: &str, entries: &[(String, RawTensor, Range<usize>)]) -> Result<(), CheckpointError> {
    let mut seen = std::collections::HashSet::with_capacity(entries.len());
    for (name, _, _) in entries {
        if !seen.insert(name.as_str()) {
            return Err(header_error(file, format!("tensor `{name}`"), "each name once", "the name twice".to_owned()));
        }
    }
    Ok(())
}

/// Checks that the sorted ranges follow each other without overlap or gap from the end of the header to the end of the file.
fn check_tiling(
    file: &str,
    entries: &[(String, RawTensor, Range<usize>)],
    data_start: usize,
    file_bytes: usize,
) -> Result<(), CheckpointError> {
    let data_bytes = file_bytes - data_start;
    let mut reached = 0;
    let mut previous = "the header";
    for (name, _, range) in entries {
        if range.start != reached {
            // A range that leaves the file leaves a gap where it should be; it is the one to name.
            let outside = entries.iter().find(|(_, _, other)| other.end > data_bytes);
            let (name, range, fault) = match outside {
                _ if range.start < reached => (name, range, "an overlap with"),
                Some((name, _, range)) => (name, range, "a range outside the file, not right after"),
                None => (name, range, "a gap after"),
            };
            let found = format!("{fault} {previous}: {}..{}", range.start, range.end);
            return Err(header_error(
                file,
                format!("tensor `{name}`"),
                format!("data from offset {reached} on"),
                found,
            ));
        }
        reached = range.end;
        previous = name;
    }
    if reached != data_bytes {
        let expected_bytes = data_start.saturating_add(reached);
        return Err(CheckpointError::FileSize { file: file.to_owned(), expected_bytes, found_bytes: file_bytes });
    }
    Ok(())
}

fn header_error(file: &str, subject: impl Into<String>, expected: impl Into<String>, found: String) -> CheckpointError {
    CheckpointError::Header { file: file.to_owned(), subject: subject.into(), expected: expected.into(), found }
}

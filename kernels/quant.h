// Stored matrices: where a row's codes, scales and biases lie, and eight neighbouring elements of it in fp32.
//
// A format is `bits | group << 8 | scale << 16`: bits of a code (0: plain elements), inputs that share a scale and a bias
// (32, 64 or 128), type of scales, biases and plain elements (0 bf16, 1 half, 2 float). The codes of a row are one
// little-endian bit stream, and an element is `scale * code + bias`. Kernels pass a function constant as format, so that
// a specialised pipeline holds one path. Rows have a multiple of 32 elements.
#pragma once
#include "functions.h"

struct StoredMatrix {
    device const uchar* codes;
    device const uchar* scales;
    device const uchar* biases;
    uint format;
    uint cols;
};

inline StoredMatrix stored_matrix(
    device const uchar* codes, device const uchar* scales, device const uchar* biases, uint format, uint cols) {
    StoredMatrix m;
    m.codes = codes;
    m.scales = scales;
    m.biases = biases;
    m.format = format;
    m.cols = cols;
    return m;
}

inline uint bits_of(uint format) { return format & 0xffu; }
inline uint group_of(uint format) { return format >> 8 & 0xffu; }
// The logarithm of a group's inputs: a division by a function constant is not always a shift.
inline uint group_shift(uint format) { return group_of(format) == 32 ? 5 : group_of(format) == 64 ? 6 : 7; }
inline uint float_type_of(uint format) { return format >> 16; }
inline uint float_bytes_of(uint format) { return float_type_of(format) == 2 ? 4 : 2; }

// Bytes of a row's codes or plain elements.
inline uint row_bytes(StoredMatrix m) {
    uint bits = bits_of(m.format);
    return bits == 0 ? m.cols * float_bytes_of(m.format) : m.cols / 8 * bits;
}

inline device const uchar* row_codes(StoredMatrix m, uint row) { return m.codes + ulong(row) * row_bytes(m); }

// Element `index` of an array of scales, biases or plain elements.
inline float stored_float(uint type, device const uchar* values, ulong index) {
    if (type == 0) {
        return as_type<float>(uint(((device const ushort*)values)[index]) << 16);
    }
    if (type == 1) {
        return float(((device const half*)values)[index]);
    }
    return ((device const float*)values)[index];
}

// What turns a group's codes into elements; plain elements are their own codes.
struct Group {
    float scale;
    float bias;
};

inline Group load_group(StoredMatrix m, uint row, uint column) {
    Group g;
    g.scale = 1.0f;
    g.bias = 0.0f;
    if (bits_of(m.format) != 0) {
        uint shift = group_shift(m.format);
        ulong index = ulong(row) * (m.cols >> shift) + (column >> shift);
        g.scale = stored_float(float_type_of(m.format), m.scales, index);
        g.bias = stored_float(float_type_of(m.format), m.biases, index);
    }
    return g;
}

// Added to each code by `offset_nibbles`.
#define NIBBLE_OFFSET 128.0f

// The eight 4-bit codes of a word, each plus 128: the bytes 0, 0, code, 0x43 are that number as a float, so that there is
// neither a conversion nor a shift for each code.
inline Float8 offset_nibbles(uint word) {
    uchar4 even = as_type<uchar4>(word & 0x0f0f0f0fu);
    uchar4 odd = as_type<uchar4>(word >> 4 & 0x0f0f0f0fu);
    Float8 codes;
    codes.low = float4(
        as_type<float>(uchar4(0, 0, even.x, 0x43)), as_type<float>(uchar4(0, 0, odd.x, 0x43)),
        as_type<float>(uchar4(0, 0, even.y, 0x43)), as_type<float>(uchar4(0, 0, odd.y, 0x43)));
    codes.high = float4(
        as_type<float>(uchar4(0, 0, even.z, 0x43)), as_type<float>(uchar4(0, 0, odd.z, 0x43)),
        as_type<float>(uchar4(0, 0, even.w, 0x43)), as_type<float>(uchar4(0, 0, odd.w, 0x43)));
    return codes;
}

// The eight 8-bit codes of two words.
inline Float8 byte_codes(uint2 words) {
    Float8 codes;
    codes.low = float4(as_type<uchar4>(words.x));
    codes.high = float4(as_type<uchar4>(words.y));
    return codes;
}

// Eight codes of any width, which occupy as many bytes as a code has bits.
inline Float8 stream_codes(device const uchar* from, uint bits) {
    ulong stream = 0;
    for (uint i = 0; i < bits; i++) {
        stream |= ulong(from[i]) << (8 * i);
    }
    ulong mask = (1ul << bits) - 1;
    Float8 codes;
    codes.low = float4(
        float(stream & mask), float(stream >> bits & mask), float(stream >> (2 * bits) & mask),
        float(stream >> (3 * bits) & mask));
    stream >>= 4 * bits;
    codes.high = float4(
        float(stream & mask), float(stream >> bits & mask), float(stream >> (2 * bits) & mask),
        float(stream >> (3 * bits) & mask));
    return codes;
}

// Eight plain elements.
inline Float8 plain_elements(device const uchar* row, uint type, uint column) {
    if (type == 0) {
        return widen8(load_uint4(row + 2 * column));
    }
    Float8 x;
    x.low = float4(
        stored_float(type, row, column), stored_float(type, row, column + 1), stored_float(type, row, column + 2),
        stored_float(type, row, column + 3));
    x.high = float4(
        stored_float(type, row, column + 4), stored_float(type, row, column + 5), stored_float(type, row, column + 6),
        stored_float(type, row, column + 7));
    return x;
}

// Codes `column..column + 8` of a row that starts at `row`, before scale and bias; `column` is a multiple of 8.
inline Float8 load_codes8(uint format, device const uchar* row, uint column) {
    uint bits = bits_of(format);
    if (bits == 4) {
        Float8 codes = offset_nibbles(load_uint(row + column / 2));
        codes.low -= NIBBLE_OFFSET;
        codes.high -= NIBBLE_OFFSET;
        return codes;
    }
    if (bits == 8) {
        return byte_codes(load_uint2(row + column));
    }
    return bits == 0 ? plain_elements(row, float_type_of(format), column) : stream_codes(row + column / 8 * bits, bits);
}

// Elements `column..column + 8` of a row in fp32; `column` is a multiple of 8.
inline Float8 dequantize8(StoredMatrix m, uint row, uint column) {
    Group g = load_group(m, row, column);
    Float8 x = load_codes8(m.format, row_codes(m, row), column);
    if (bits_of(m.format) != 0) {
        x.low = g.scale * x.low + g.bias;
        x.high = g.scale * x.high + g.bias;
    }
    return x;
}

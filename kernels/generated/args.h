// Written by `cargo xtask codegen` from the kernel contracts; change those instead.
#pragma once

#define SIMD_WIDTH 32
#define VECTOR_OUTPUTS 4
#define GATED_OUTPUTS 2
#define GATED_SIMDGROUPS 9
#define VECTOR_SIMDGROUPS 8
#define BATCH_MAX 8
#define NARROW_OUTPUTS 2
#define DOWN_OUTPUTS 8
#define DELTA_STEP_THREADS 512
#define BLOCK_THREADS 256
#define EXPERTS_MAX 512
#define TOP_K_MAX 16
#define KEY_DIM_MAX 256
#define VALUE_DIM_MAX 256
#define HEAD_DIM_MAX 256
#define TILE_OUTPUTS 64
#define SIMDGROUP_OUTPUTS 32
#define ROUTER_ROWS 4
#define PREP_ROWS 8
#define COMBINE_ELEMENTS 8
#define ROW_SIMDGROUPS 4
#define ATTEND_SIMDGROUPS 8
#define ROW_THREADS 256
#define PACKED_QUERIES 4
#define WIDE_PACKED_QUERIES 8
#define NO_TILE 4294967295u
#define SAMPLE_THREADS 1024u
#define SCAN_STRETCH 256u
#define SCAN_THREADS 128u
#define SCAN_WORDS 5u
#define USES_BIAS 1u
#define USES_GENERATED 2u
#define USES_SEEN 4u
#define IN_PROMPT 2147483648u
#define RESULT_WORDS 4u
#define SAMPLE_NOT_FINITE 1u
#define SAMPLE_ALL_MASKED 2u
#define SAMPLE_FLAT 3u
#define EMPTY_BLOCK -1e30f

constant uint FORMAT0 [[function_constant(0)]];
constant uint FORMAT1 [[function_constant(1)]];
constant uint FORMAT2 [[function_constant(2)]];
constant uint FORMAT3 [[function_constant(3)]];
constant uint TILE_ROWS [[function_constant(4)]];
constant uint KEY_DIM [[function_constant(5)]];
constant uint HEAD_DIM [[function_constant(6)]];
constant uint BLOCK_ROWS [[function_constant(7)]];
constant uint PACKED [[function_constant(8)]];
constant uint COALESCED [[function_constant(9)]];
constant uint BATCH [[function_constant(10)]];

struct MoeDims {
    uint rows;
    uint width;
    uint experts;
    uint top_k;
    uint expert_width;
    uint shared_width;
    float eps;
};

struct DeltaDims {
    uint rows;
    uint key_heads;
    uint value_heads;
    uint key_dim;
    uint value_dim;
    uint conv_width;
    float eps;
};

struct AttentionDims {
    uint rows;
    uint heads;
    uint kv_heads;
    uint head_dim;
    uint rotary_dim;
    float eps;
};

struct Segments {
    uint count;
    uint keys;
};

struct CacheReading {
    uint blocks;
    uint block_keys;
    uint packed;
    uint coalesced;
};

struct SampleParams {
    float inverse_temperature;
    uint top_k;
    float top_p;
    float min_p;
    float presence_penalty;
    float frequency_penalty;
    float repetition_penalty;
    uint uses;
    uint vocab;
    uint seed[2];
};

struct EmbedArgs {
    uint rows;
    uint width;
    uint format;
};

struct HeadArgs {
    uint row;
    uint rows;
    uint width;
    uint vocab;
    float eps;
    uint format;
};

struct RmsNormArgs {
    uint rows;
    uint width;
    float eps;
};

struct MatMulArgs {
    uint rows;
    uint cols;
    uint outputs;
    uint format;
    uint tile_rows;
};

struct MatMulAddArgs {
    uint rows;
    uint cols;
    uint outputs;
    uint format;
    uint tile_rows;
};

struct MatVecAddArgs {
    uint rows;
    uint cols;
    uint outputs;
    uint format;
};

struct GateUpArgs {
    uint rows;
    uint cols;
    uint outputs;
    uint gate_format;
    uint up_format;
    uint tile_rows;
};

struct ProjectArgs {
    uint rows;
    uint width;
    uint outputs[4];
    uint formats[4];
    float eps;
};

struct DeltaPrepArgs {
    DeltaDims dims;
};

struct DeltaScanArgs {
    DeltaDims dims;
    uint block_rows;
};

struct GatedNormArgs {
    DeltaDims dims;
};

struct DeltaStepArgs {
    DeltaDims dims;
};

struct QkPrepArgs {
    AttentionDims dims;
};

struct AttendArgs {
    AttentionDims dims;
    Segments segments;
};

struct MergeSegmentsArgs {
    AttentionDims dims;
    Segments segments;
};

struct AttendBlocksArgs {
    AttentionDims dims;
    CacheReading reading;
};

struct AttendMergeArgs {
    AttentionDims dims;
    uint blocks;
};

struct MergeMatVecAddArgs {
    AttentionDims dims;
    uint blocks;
    uint outputs;
    uint format;
};

struct RouterArgs {
    MoeDims dims;
    uint router_format;
    uint shared_format;
};

struct RouteArgs {
    MoeDims dims;
};

struct GroupRowsArgs {
    MoeDims dims;
    uint tile_rows;
};

struct ExpertGateUpArgs {
    MoeDims dims;
    uint gate_format;
    uint up_format;
    uint stride_rows;
    uint tile_rows;
};

struct ExpertDownArgs {
    MoeDims dims;
    uint format;
    uint stride_rows;
    uint tile_rows;
};

struct CombineArgs {
    MoeDims dims;
};

struct RouterStepArgs {
    MoeDims dims;
    uint router_format;
    uint shared_format;
};

struct ExpertsGateUpStepArgs {
    MoeDims dims;
    uint gate_format;
    uint up_format;
    uint shared_gate_format;
    uint shared_up_format;
    uint stride_rows;
};

struct ExpertsDownStepArgs {
    MoeDims dims;
    uint format;
    uint shared_format;
    uint stride_rows;
};

struct SampleScanArgs {
    uint vocab;
};

struct SampleArgs {
    uint vocab;
};

struct DequantizeArgs {
    uint experts;
    uint rows;
    uint cols;
    uint stride_rows;
    uint format;
};

struct ExpertsProductsStepArgs {
    MoeDims dims;
    uint gate_format;
    uint up_format;
    uint shared_gate_format;
    uint shared_up_format;
    uint stride_rows;
};

struct GateProductsArgs {
    MoeDims dims;
};

struct ExpertsEachStepArgs {
    MoeDims dims;
    uint format;
    uint shared_format;
    uint stride_rows;
};

struct DeltaUpdateArgs {
    DeltaDims dims;
};

struct AttendPreparedArgs {
    AttentionDims dims;
    CacheReading reading;
};

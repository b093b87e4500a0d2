"""What FlashInfer does in attention and products, carried out with torch: as `flashinfer-apis.md` of the project's
references and the library's own sources say of arguments, order of calls and buffers. Texts of modules."""

PREFILL = """
class BatchPrefillWithPagedKVCacheWrapper:
    made = []
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
            paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, custom_mask_buf=None,
            mask_indptr_buf=None, backend="auto", jit_args=None, jit_kwargs=None, variant_owns_mask=False,
            max_total_num_rows=None):
        assert kv_layout == "NHD" and float_workspace_buffer.dtype == torch.uint8 and backend in ("fa2", "fa3")
        self.backend, self.graph, self.plans, self.floats = backend, use_cuda_graph, 0, float_workspace_buffer
        self.buffers = [qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf]
        if use_cuda_graph:
            assert all(torch.is_tensor(x) for x in self.buffers)
            self.fixed = len(paged_kv_last_page_len_buf)
            assert len(qo_indptr_buf) == len(paged_kv_indptr_buf) == self.fixed + 1
        BatchPrefillWithPagedKVCacheWrapper.made.append(self)
    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer):
        assert int_workspace_buffer.numel() == 8 << 20
        self.integers = int_workspace_buffer
    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
            head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
            pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
            rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None, o_data_type=None,
            non_blocking=True, prefix_len_ptr=None, token_pos_in_items_ptr=None, token_pos_in_items_len=0,
            max_item_len_ptr=None, seq_lens=None, seq_lens_q=None, block_tables=None, max_token_per_sequence=None,
            max_sequence_kv=None, fixed_split_size=None, disable_split_kv=False, uniform_q_len=None,
            use_token_head_sf=False):
        given = [qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len]
        assert causal and all(x.dtype == torch.int32 and x.device.type == "cpu" for x in (*given, seq_lens))
        pages = paged_kv_indptr[1:] - paged_kv_indptr[:-1]
        assert torch.equal(seq_lens, (pages - 1) * page_size + paged_kv_last_page_len) and (pages > 0).all()
        if self.graph:
            assert len(paged_kv_last_page_len) == self.fixed and len(paged_kv_indices) <= len(self.buffers[2])
            for buffer, x in zip(self.buffers, given):
                buffer[:len(x)].copy_(x)
        else:
            self.buffers = [x.clone() for x in given]
        self.plans += 1
        self.planned = dict(heads=num_qo_heads, kv_heads=num_kv_heads, dim=head_dim_qk, page=page_size, scale=sm_scale,
            left=window_left, cap=logits_soft_cap, types=(q_data_type, kv_data_type), rows=int(qo_indptr[-1]))
    def run(self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None,
            return_lse=False, lse_base="log2", lse_layout="NH", enable_pdl=None, window_left=None, sinks=None,
            kv_cache_sf=None):
        p, (k, v) = self.planned, paged_kv_cache
        assert q.shape == out.shape == (p["rows"], p["heads"], p["dim"]) and (q.dtype, k.dtype) == p["types"]
        edges, pages, indices, last = (x.tolist() for x in self.buffers)
        for at in range(len(last)):
            table = indices[pages[at]:pages[at + 1]]
            attend(q, k, v, out, edges[at], edges[at + 1], table, (len(table) - 1) * p["page"] + last[at], p["scale"],
                p["left"], p["cap"])
"""

CONTEXT = """
def trtllm_batch_context_with_kv_cache(query, kv_cache, workspace_buffer, block_tables, seq_lens, max_q_len, max_kv_len,
        bmm1_scale, bmm2_scale, batch_size, cum_seq_lens_q, cum_seq_lens_kv, window_left=-1, out=None, out_dtype=None,
        o_sf_scale=None, o_sf_vec_size=None, kv_layout="HND", enable_pdl=None, sinks=None, kv_cache_sf=None,
        multi_ctas_kv_counter_buffer=None):
    assert kv_layout == "NHD" and batch_size == len(seq_lens) and bmm2_scale == 1.0 and query.is_contiguous()
    edges, ends = cum_seq_lens_q.tolist(), cum_seq_lens_kv.tolist()
    assert ends == [0, *torch.cumsum(seq_lens, 0).tolist()] and cum_seq_lens_kv.dtype == torch.int32
    assert max_q_len == max(b - a for a, b in zip(edges, edges[1:])) and max_kv_len == int(seq_lens.max())
    for at, length in enumerate(seq_lens.tolist()):
        attend(query, *kv_cache, out, edges[at], edges[at + 1], block_tables[at].tolist(), length, bmm1_scale,
            window_left, None)
"""

DECODE = """
def xqa_batch_decode_with_kv_cache(query, kv_cache, workspace_buffer, block_tables, seq_lens, max_seq_len,
        bmm1_scale=1.0, bmm2_scale=1.0, window_left=-1, out=None, sinks=None, kv_layout="NHD", enable_pdl=None,
        q_len_per_req=1, o_scale=1.0, mask=None, kv_cache_sf=None, q_cu_seq_lens=None):
    assert kv_layout == "NHD" and len(query) == len(seq_lens) and not workspace_buffer[: 8 << 20].any()
    assert (seq_lens > 0).all() and int(seq_lens.max()) <= max_seq_len and query.is_contiguous()
    single.append("xqa")
    for at, length in enumerate(seq_lens.tolist()):
        attend(query, *kv_cache, out, at, at + 1, block_tables[at].tolist(), length, bmm1_scale, window_left, None)
    out.mul_(bmm2_scale)

def trtllm_batch_decode_with_kv_cache(query, kv_cache, workspace_buffer, block_tables, seq_lens, max_seq_len,
        bmm1_scale=1.0, bmm2_scale=1.0, window_left=-1, out=None, out_dtype=None, o_sf_scale=None, o_sf_vec_size=None,
        sinks=None, kv_layout="HND", enable_pdl=None, backend="auto", q_len_per_req=1, o_scale=1.0, mask=None,
        multi_ctas_kv_counter_buffer=None):
    assert backend == "trtllm-gen" and kv_layout == "NHD" and len(query) == len(seq_lens) and (seq_lens > 0).all()
    assert int(seq_lens.max()) <= max_seq_len and not multi_ctas_kv_counter_buffer.any() and query.is_contiguous()
    single.append("trtllm")
    for at, length in enumerate(seq_lens.tolist()):
        attend(query, *kv_cache, out, at, at + 1, block_tables[at].tolist(), length, bmm1_scale, window_left, None)
"""

COMMON = """
single = []

def attend(q, k, v, out, first, stop, table, length, scale, left, cap):
    new, group = stop - first, q.shape[1] // k.shape[2]
    keys, values = (x[torch.tensor(table)].flatten(0, 1)[:length].double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q[first:stop].double(), keys) * scale
    if cap:
        scores = (scores / cap).tanh() * cap
    behind = torch.arange(length - new, length)[:, None] - torch.arange(length)
    hidden = (behind < 0) | (behind > left if left >= 0 else False)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    out[first:stop] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)
"""

GEMM = """
def gemm_fp8_nt_groupwise(a, b, a_scale, b_scale, scale_major_mode=None, mma_sm=1, scale_granularity_mnk=(1, 128, 128),
        out=None, out_dtype=None, backend="cutlass"):
    assert scale_major_mode == "K" and backend == "cutlass" and scale_granularity_mnk == (1, 128, 128)
    assert len(a) % 4 == 0 and mma_sm in (1, 2) and all(x.is_contiguous() for x in (a, b, a_scale, b_scale, out))
    assert a.dtype == b.dtype == torch.float8_e4m3fn and out.dtype in (torch.float16, torch.bfloat16)
    left = a.double() * a_scale.double().repeat_interleave(128, 1)
    right = b.double() * b_scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert left.isfinite().all()
    out.copy_(left @ right.T)
"""

PRIMS = """
def fp8_linear(a, weight, a_scale, weight_scale, bias=None, *, qkv_scale=None, config=None, out_dtype=torch.bfloat16,
        output_quant_scale=None, out=None):
    given = [x for x in (a, weight, a_scale, weight_scale, bias, out) if x is not None]
    assert all(x.is_contiguous() for x in given) and a.shape[1] % 128 == 0 and len(a) > 0
    assert a.dtype == weight.dtype == torch.float8_e4m3fn and a_scale.dtype == weight_scale.dtype == torch.float32
    assert a_scale.shape == (len(a),) and weight_scale.shape == (len(weight),) and out.shape == (len(a), len(weight))
    assert out.dtype == out_dtype == torch.bfloat16 and (bias is None or bias.dtype == torch.bfloat16)
    total = a.double() * a_scale.double()[:, None] @ (weight.double() * weight_scale.double()[:, None]).T
    out.copy_(total if bias is None else total + bias)
    return out
"""

MLA = """
class MLAPlanMetadata:
    @classmethod
    def csr(cls, qo_indptr, kv_indptr, kv_indices, kv_len_arr):
        made = cls()
        made.rows = [qo_indptr, kv_indptr, kv_indices, kv_len_arr]
        return made

class BatchMLAPagedAttentionWrapper:
    made = []
    def __init__(self, float_workspace_buffer, use_cuda_graph=False, qo_indptr=None, kv_indptr=None, kv_indices=None,
            kv_len_arr=None, backend="auto"):
        assert backend in ("fa2", "fa3")
        self.graph, self.buffers, self.plans = use_cuda_graph, [qo_indptr, kv_indptr, kv_indices, kv_len_arr], 0
        assert all(torch.is_tensor(x) for x in self.buffers) is use_cuda_graph
        BatchMLAPagedAttentionWrapper.made.append(self)
    def plan(self, qo_indptr=None, kv_indptr=None, kv_indices=None, kv_len_arr=None, num_heads=None, head_dim_ckv=None,
            head_dim_kpe=None, page_size=None, causal=None, sm_scale=None, q_data_type=None, kv_data_type=None,
            use_profiler=False, *, metadata=None, query_layout=None, kv_cache_layout=None, lse_mode="none"):
        assert causal and (query_layout, kv_cache_layout) == ("split", "packed")
        assert all(x.dtype == torch.int32 for x in metadata.rows) and len(metadata.rows[3]) > 0
        if self.graph:
            for buffer, x in zip(self.buffers, metadata.rows):
                buffer[:len(x)].copy_(x)
        else:
            self.buffers = [x.clone() for x in metadata.rows]
        self.plans += 1
        self.sizes = num_heads, head_dim_ckv, head_dim_kpe, page_size, sm_scale
        self.types = q_data_type, kv_data_type
    def run(self, q_nope=None, q_pe=None, ckv_cache=None, kpe_cache=None, out=None, lse=None, return_lse=False, *,
            query=None, kv_cache=None):
        heads, rank, rope, page, scale = self.sizes
        edges, pages, indices, lengths = (x.tolist() for x in self.buffers)
        assert query[0].shape[1:] == (heads, rank) and query[1].shape[1:] == (heads, rope) and kv_cache.shape[1] == page
        assert len(query[0]) == len(query[1]) == len(out) == edges[len(lengths)]
        assert (query[0].dtype, kv_cache.dtype) == self.types == (query[1].dtype, out.dtype)
        for at, length in enumerate(lengths):
            rows, new = slice(edges[at], edges[at + 1]), edges[at + 1] - edges[at]
            keys = kv_cache[torch.tensor(indices[pages[at]:pages[at + 1]])].flatten(0, 1)[:length].double()
            q = torch.cat([x[rows].double() for x in query], -1)
            scores = torch.einsum("qhd,kd->hqk", q, keys) * scale
            ahead = torch.arange(length) > torch.arange(length - new, length)[:, None]
            weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
            out[rows] = torch.einsum("hqk,kd->qhd", weights, keys[:, :rank]).to(out.dtype)

single = []

def trtllm_batch_decode_with_kv_cache_mla(query, kv_cache, workspace_buffer, qk_nope_head_dim, kv_lora_rank,
        qk_rope_head_dim, block_tables, seq_lens, max_seq_len, sparse_mla_top_k=0, out=None, bmm1_scale=1.0,
        bmm2_scale=1.0, sinks=None, skip_softmax_threshold_scale_factor=None, enable_pdl=None, backend="auto",
        is_var_seq=True, uses_shared_paged_kv_idx=True, lse=None, return_lse=False, cute_dsl_impl="auto",
        kv_scale_format="auto", cum_seq_lens_q=None, max_q_len=None, multi_ctas_kv_counter_buffer=None):
    assert backend == "trtllm-gen" and bmm2_scale == 1.0 and (kv_lora_rank, qk_rope_head_dim) in ((512, 64), (256, 64))
    assert query.shape[1] == 1 and not 64 < query.shape[2] < 128 and kv_cache.shape[1] in (32, 64)
    assert query.shape[3] == kv_cache.shape[2] == kv_lora_rank + qk_rope_head_dim and query.is_contiguous()
    assert query.dtype == kv_cache.dtype == out.dtype == torch.bfloat16 and out.is_contiguous()
    assert out.shape == (*query.shape[:3], kv_lora_rank) and len(query) == len(block_tables) == len(seq_lens)
    assert seq_lens.dtype == block_tables.dtype == torch.int32 and block_tables.is_contiguous()
    assert (seq_lens > 0).all() and int(seq_lens.max()) <= max_seq_len and not multi_ctas_kv_counter_buffer.any()
    single.append("trtllm")
    for at, length in enumerate(seq_lens.tolist()):
        keys = kv_cache[block_tables[at].long()].flatten(0, 1)[:length].double()
        weights = (query[at, 0].double() @ keys.T * bmm1_scale).softmax(-1)
        out[at, 0] = (weights @ keys[:, :kv_lora_rank]).to(out.dtype)
"""

TEXTS = {"mla": MLA, "gemm": GEMM, "prims_ts": PRIMS, "prefill": COMMON + PREFILL + CONTEXT, "decode": COMMON + DECODE}
"""Module → text."""

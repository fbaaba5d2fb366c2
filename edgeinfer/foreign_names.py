"""What other libraries call the things that edgeinfer has, so that an error can say what they are called here.

In: a name that is not known, and the names that are. Out: a hint, or an AttributeError with one. The names are those of
llama-cpp-python, ollama-python, transformers, vLLM and OpenAI's client. Nothing is renamed by it: a foreign name stays
an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

Names = Mapping[str, str]
"""By foreign name: a name of ours, or a sentence."""
NO_NAMES: Names = MappingProxyType({})


def _table(names_by_answer: Mapping[str, str]) -> Names:
    """A table by foreign name, of one by what there is to say to several of them."""
    return MappingProxyType({name: told for told, names in names_by_answer.items() for name in names.split()})


TO_LOAD = _table(
    {
        "n_context": "n_ctx ctx num_ctx ctx_size context_length context_size max_seq_len max_model_len max_length",
        "threads": "n_threads num_threads num_thread n_threads_batch",
        "device": "device_map backend devices",
        'device says where a model runs: "auto", "cpu", "cuda", "openvino:gpu" …': (
            "n_gpu_layers gpu_layers num_gpu main_gpu tensor_split gpu"
        ),
        "ram_bytes": "ram memory max_memory gpu_memory_utilization",
        "packs": "pack",
        "kv": "type_k type_v cache_type_k cache_type_v kv_cache_dtype kv_type",
        "lora": "lora_path lora_paths lora_adapters adapter adapters lora_modules",
        "chat_template": "chat_format template",
        "mmproj": "clip_model_path mmproj_path projector chat_handler",
        "draft_from": "draft_model speculative_model model_draft assistant_model",
        "spec": "speculative speculation",
        "parallel": "n_parallel num_parallel max_num_seqs n_seq_max",
        "progress": "progress_callback callback progress_bar on_progress tqdm",
        "prefix_cache": "cache prompt_cache enable_prefix_caching",
        "the first argument is the model's name or path": (
            "model_path model_name model_id pretrained_model_name_or_path repo_id filename"
        ),
        "nothing is printed; pass progress to watch the loading": "verbose log_level quiet",
        "edgeinfer chooses how many tokens a pass has": "n_batch n_ubatch num_batch batch_size",
        "ram_bytes limits the memory for weights, and nothing else has to be said": "use_mmap use_mlock low_vram mmap",
        "attention is always computed that way": "flash_attn flash_attention attn_implementation",
        "every model that can embed does, without being told: llm.embed(texts)": "embedding embeddings",
        "llm.logprobs(text) tells those of a text": "logits_all",
        "weights are used as the file has them: choose a file with the quantisation you want": (
            "torch_dtype dtype load_in_4bit load_in_8bit quantization quantization_config quant"
        ),
        "load opens what is on this machine; `edgeinfer pull` fetches models": (
            "token cache_dir local_files_only revision trust_remote_code hf_token download download_dir"
        ),
        "the model stays until it is closed": "keep_alive",
    }
)
"""Keywords that people may give to `edgeinfer.load`."""

OF_ANSWERS = _table(
    {
        "max_tokens": "max_new_tokens max_completion_tokens max_output_tokens n_predict num_predict max_length",
        "repeat_penalty": "repetition_penalty",
        "penalty_window": "repeat_last_n",
        "temperature": "temp",
        "seed": "random_seed random_state",
        "stop": "stop_sequences stop_strings stop_words stops",
        "schema": "json_schema guided_json response_schema response_model output_schema",
        "grammar": "gbnf guided_grammar",
        "regex": "guided_regex pattern",
        "logprobs": "top_logprobs n_probs output_scores",
        "tools": "functions",
        "tool_choice": "function_call",
        "parallel_tools": "parallel_tool_calls",
        "template_variables": "chat_template_kwargs",
        "max_thought_tokens": "thinking_budget reasoning_budget",
        "scored_from": "echo prompt_logprobs",
        "schema is a JSON schema that the answer follows; True: any JSON object": "response_format format json_mode",
        "every answer is a stream: iterate over it, or read() the whole text": "stream streaming streamer",
        "llm.several(prompt, n) writes several answers, llm.batch(prompts) answers several prompts": (
            "n best_of num_return_sequences num_completions"
        ),
        "temperature=0 takes the likeliest token each time": "do_sample greedy",
        "options are keywords of their own, as temperature=0.7": "options sampling_params generation_config params",
        'thinking is a variable of the template: template_variables={"enable_thinking": False}': (
            "think thinking enable_thinking reasoning reasoning_effort"
        ),
        'an image is a part of a message: {"type": "image", "image": a path or bytes}': "image images",
        "llm.complete(text) continues a text without the chat template": "raw",
        "the model is the one that was loaded": "model",
        "stream.stop() ends an answer, from any thread": "timeout",
        "edgeinfer has no such sampler; it has top_k, top_p and min_p": (
            "typical_p tfs_z top_a mirostat mirostat_mode mirostat_tau mirostat_eta num_beams penalty_alpha"
            " xtc_probability dry_multiplier dynatemp_range"
        ),
        "logit_bias is what changes logits": "logits_processor logits_processors",
        "ignore_eos makes an answer go on to max_tokens": "min_tokens min_new_tokens min_length",
    }
)
"""Options that people may give to `chat` and `complete`."""

OF_SETTINGS = _table(
    {
        "temp": "temperature",
        "ctx": "n_ctx num_ctx ctx_size context context_length context_size n_context",
        "max_tokens": "max_new_tokens n_predict num_predict max_length",
        "repeat_penalty": "repetition_penalty",
        "threads": "n_threads num_thread num_threads",
        "device": "gpu n_gpu_layers num_gpu gpu_layers main_gpu backend",
        "ram": "memory max_memory ram_bytes",
        "kv": "cache_type_k cache_type_v kv_cache_type type_k type_v",
        "system": "system_prompt",
        "chat_template": "template chat_format",
        "draft_from": "draft_model model_draft",
        "model": "default_model",
    }
)
"""Names that people may give to settings: `/set`, `config set`, config.toml."""

_OPENS = "edgeinfer.load(name) opens a model"
OF_PACKAGE = _table(
    {
        f"{_OPENS}, and has a method for it": (
            "chat complete completion generate embed embeddings tokenize detokenize batch chat_completion"
        ),
        _OPENS: "Llama Model Engine pipeline AutoModel AutoModelForCausalLM from_pretrained open load_model",
        f"{_OPENS} here; for a client of a server, `edgeinfer serve` has OpenAI's, Anthropic's and Ollama's API": (
            "Client AsyncClient OpenAI AsyncOpenAI"
        ),
        "it is a command of the terminal: `edgeinfer --help` lists all": (
            "pull download list list_models show rm delete ps plan probe serve doctor bench pack export tune"
        ),
        "TextStream is what `chat` and `complete` return": "Stream Answer Response Completion ChatCompletion",
        "SamplingSettings has them": "SamplingParams GenerationConfig",
    }
)
"""Names that people may look for in the package."""

OF_MODELS = _table(
    {
        "llm.complete(text) continues a text, llm.chat(messages) answers": (
            "generate predict invoke create run respond ask create_completion completion completions"
        ),
        "llm.chat(messages) answers": "create_chat_completion chat_completion chat_completions query",
        "llm.chat(messages) returns a stream": "stream stream_chat generate_stream achat acomplete",
        "llm.batch(prompts) answers several": "generate_batch batch_generate",
        "llm.embed(texts) returns vectors": "create_embedding create_embeddings embeddings embedding get_embeddings",
        "llm.tokenize(text) returns token ids, llm.embed(texts) vectors": "encode",
        "llm.detokenize(tokens) returns the text": "decode",
        "llm.tokenize and llm.detokenize are what it can do": "tokenizer get_tokenizer",
        "llm.prompts.render(messages) is the text that the model gets": "apply_chat_template render format_messages",
        "len(llm.tokenize(text)) for a text, llm.prompts.n_tokens(messages) for a conversation": (
            "count_tokens n_tokens num_tokens token_count get_num_tokens"
        ),
        "llm.info describes the model: its name, path, architecture, n_context …": (
            "name model_name model_path path n_ctx n_context context_length context_size metadata architecture config"
        ),
        "lora= when the model is loaded or of an answer, and llm.set_adapters": "load_lora load_adapter set_lora",
        "a session has save(path) and restore(path): llm.session()": (
            "save_state load_state save_session load_session save_cache load_cache"
        ),
        "seed is an option of an answer: llm.chat(messages, seed=1)": "set_seed",
        "answers are independent of each other, so there is nothing to reset": "reset clear",
        "llm.close() frees it": "unload free shutdown eject delete release",
        "llm.stop() ends all answers": "cancel abort interrupt",
        "device= says where a model runs when it is loaded": "to",
        "llm.session() opens one": "new_session create_session start_chat new_chat",
    }
)
"""Names that people may look for in an `LLM`."""

OF_STREAMS = _table(
    {
        "stats.n_prompt and stats.n_generated count tokens, once the answer is done": (
            "usage prompt_eval_count eval_count prompt_tokens completion_tokens timings"
        ),
        "stats.finish_reason has it, once the answer is done": "finish_reason stop_reason done_reason done",
        "text is the text so far, and read() generates the rest": (
            "choices message response output output_text generated_text result get get_text value delta completion"
        ),
        "json.loads(stream.content), or of a pydantic model Model.model_validate_json(stream.content)": (
            "parsed output_parsed json parse"
        ),
        "stop() ends it": "cancel abort",
        "reasoning has them": "thinking thoughts reasoning_content",
        "iterate over it, with `for` or `async for`": "stream iter iter_text aiter text_stream",
    }
)
"""Names that people may look for in an answer."""

OF_SESSIONS = _table(
    {
        "branch() returns a copy": "fork copy clone",
        "restore(path) does": "load load_state",
        "save(path) does": "save_state",
        "messages has the conversation": "history conversation",
        "chat(text) asks": "ask send respond prompt generate",
        "a new session begins anew: llm.session()": "reset clear",
    }
)
"""Names that people may look for in a `Session`."""


def hint(name: str, known: Iterable[str], foreign: Names) -> str:
    """What may have been meant by an unknown name; "" if nothing is like it."""
    names = tuple(known)
    told = foreign.get(name)
    if told is not None:
        return f"it is called {told} here" if told in names else told
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), names, n=1, cutoff=0.75)
    return f"did you mean {near[0]}?" if near else ""


def no_attribute(owner: object, name: str, foreign: Names) -> AttributeError:
    """The error of an attribute that an object does not have."""
    told = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{told}; {foreign[name]}" if name in foreign else told, name=name, obj=owner)

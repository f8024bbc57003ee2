"""The reference rows: what sessions are known to have to do, row by row, and the tests of ours that would tell.

A row whose outcome is another one here, or that asks for what there is not here, says so and why; its tests are those
of what holds instead.
"""

import pytest

from tests.support.rows import Row, check_row

LOG: dict[int, Row] = {
    1: (
        "A turn that is over is resumed in no step and without a model call, here and after a restart.",
        "tests/session/test_reference_rows.py::test_a_turn_that_is_over_is_resumed_without_a_step_here_and_after_a_restart",
        "tests/session/test_conversation.py::test_a_reopened_session_goes_on_and_a_finished_log_costs_nothing",
    ),
    2: (
        "A parked approval keeps its id over a restart; approved, the tool runs once and the model is asked once more; "
        "denied, it never runs (the text is the last prose and `stop_reason` says `denied`, not the text).",
        "tests/session/test_reference_rows.py::test_what_was_answered_after_a_restart_is_obeyed_once_over_repeated_resumes",
        "tests/session/test_conversation.py::test_an_approval_given_after_a_restart_is_a_fact_that_resume_obeys",
        "tests/session/test_conversation.py::test_an_approval_is_waited_for_and_obeyed",
        "tests/control/test_parked.py::test_a_denied_call_is_never_run",
    ),
    3: (
        "An approved tool runs once over repeated resumes.",
        "tests/session/test_reference_rows.py::test_what_was_answered_after_a_restart_is_obeyed_once_over_repeated_resumes",
        "tests/control/test_parked.py::test_an_approved_call_runs_once_when_the_session_goes_on",
    ),
    4: (
        "A parked question keeps options and free-text flag over a restart, costs nothing until it is answered, and "
        "then one model call (a resume that does not wait says `PARKED`).",
        "tests/session/test_reference_rows.py"
        "::test_a_question_that_was_left_parked_is_whole_after_a_restart_and_costs_nothing_until_it_is_answered",
        "tests/session/test_checkpoints.py::test_another_node_answers_the_pending_question_and_one_model_call_follows",
    ),
    5: (
        "A tool that raises has a failed result which the model reads, so it is not run again (failures are "
        "results here); only a process that dies inside a tool leaves none, and then it runs once more, and no third "
        "time.",
        "tests/session/test_conversation.py::test_a_tool_that_raises_is_a_failed_result",
        "tests/session/test_foreign_code.py::test_whatever_a_tool_raises_is_its_result",
        "tests/scenarios/test_crash.py"
        "::test_a_recorded_model_turn_is_not_sent_again_and_the_missing_result_is_made_once",
        "tests/testing/test_crash_point.py::test_a_process_that_dies_inside_a_tool_runs_it_again_with_the_same_key",
    ),
    6: (
        "From a log made by hand, with a call and no result, a resume runs the tool once and then asks the model.",
        "tests/session/test_reference_rows.py"
        "::test_a_recorded_call_without_a_result_is_run_once_and_then_the_model_is_asked",
    ),
    7: (
        "A model turn that cannot be read runs nothing and asks nobody: it is a corrupt log, told by its line "
        "(a fold must not guess, so it is no finished turn).",
        "tests/session/test_reference_rows.py"
        "::test_a_model_turn_that_cannot_be_read_is_told_by_its_line_and_runs_nothing",
    ),
    8: (
        "The same key with the same payload changes no byte and costs no model call; with another one it is refused.",
        "src/fanfold/testing/conformance.py::test_a_replayed_append_changes_nothing_and_returns_what_is_stored",
        "src/fanfold/testing/conformance.py::test_a_conflicting_append_writes_nothing",
        "tests/stores/test_jsonl.py::test_a_replayed_append_leaves_the_bytes_alone_even_if_they_were_written_by_hand",
        "tests/session/test_run_control.py::test_a_steer_that_the_log_has_from_another_process_is_not_sent_again",
        "tests/session/test_runs.py::test_a_run_of_a_chosen_id_is_started_once",
    ),
    9: (
        "A corrupt line refuses the session without an append or a model call; a torn last line is set aside.",
        "tests/session/test_reference_rows.py"
        "::test_a_log_that_is_damaged_under_an_open_session_takes_no_fact_and_no_model_call",
        "tests/stores/test_jsonl.py::test_a_log_that_cannot_be_trusted_is_refused_by_line_and_left_alone",
        "tests/stores/test_jsonl.py::test_a_torn_tail_of_any_length_is_set_aside_and_the_log_goes_on",
        "tests/session/test_lifecycle.py::test_a_session_that_cannot_be_loaded_leaves_its_id_free",
    ),
    10: (
        "Both logs append by the same rules, and an id that can name no file creates nothing.",
        "tests/stores/test_conformance.py::TestJsonlFactLog",
        "tests/stores/test_conformance.py::TestMemoryFactLog",
        "tests/stores/test_jsonl.py::test_a_bad_id_creates_no_directory",
        "tests/stores/test_thread_name.py::test_ids_that_can_name_no_file_are_refused",
    ),
    11: (
        "A record survives its line; one with a field too many, or without a type or a key, is refused.",
        "tests/kernel/test_fold_and_decide.py::test_decode_of_encode_is_the_fact",
        "tests/stores/test_jsonl.py::test_a_log_that_cannot_be_trusted_is_refused_by_line_and_left_alone",
        "src/fanfold/testing/conformance.py::test_an_append_without_keys_of_its_own_writes_nothing",
    ),
    12: (
        "Two logs are one only if every field of every fact is the same (there is no digest here to compare: the facts "
        "themselves are compared, and the lineage of an open log).",
        "tests/session/test_reference_rows.py::test_a_log_that_differs_in_any_field_of_a_fact_is_another_log",
        "tests/stores/test_jsonl.py::test_a_log_that_did_not_only_grow_has_another_lineage",
        "tests/session/test_checkpoints.py::test_a_log_that_went_another_way_is_set_aside_whole",
    ),
    13: (
        "The step limit stops a run before its next step, also one that is resumed; zero has no effect but the error, "
        "and a quiet log has no limit.",
        "tests/kernel/test_fold_and_decide.py::test_the_table_of_facts_and_actions",
        "tests/session/test_limits_in_runs.py"
        "::test_a_run_that_used_up_its_steps_stops_at_once_when_it_is_resumed_here_or_after_a_restart",
        "tests/session/test_limits_in_runs.py::test_the_steps_of_a_run_are_counted_over_its_parks_and_resumes",
        "tests/session/test_conversation.py::test_a_run_stops_at_its_step_limit",
    ),
    14: (
        "When the tool budget is spent a further call is not run (the text is the last prose, `stop_reason` says "
        "`tool_budget`).",
        "tests/session/test_limits_in_runs.py::test_a_model_that_insists_after_its_rounds_ends_the_turn",
        "tests/session/test_conversation.py::test_the_tool_budget_ends_the_turn_with_the_last_prose",
        "tests/kernel/test_fold_and_decide.py::test_the_table_of_facts_and_actions",
    ),
    15: (
        "With no rounds at all the one model call has no tools and no words of ours.",
        "tests/session/test_limits_in_runs.py::test_after_its_rounds_the_model_sees_no_tools_and_answers_in_text",
    ),
    16: (
        "A text after the last round ends the turn without a `budget.denied`.",
        "tests/session/test_limits_in_runs.py::test_after_its_rounds_the_model_sees_no_tools_and_answers_in_text",
    ),
    17: (
        "A full context is compacted once before the model is asked, and not again on resume.",
        "tests/session/test_compaction.py::test_a_full_context_is_compacted_once_before_the_next_model_call",
        "tests/session/test_compaction.py::test_a_compaction_is_in_the_log_and_not_made_again_on_resume",
        "tests/kernel/test_fold_and_decide.py::test_the_table_of_facts_and_actions",
    ),
    18: (
        "A compaction keeps the newest call with its result and a tail, and without a usable summary still shrinks.",
        "tests/session/test_compaction.py::test_the_newest_call_and_its_result_stay_together_and_the_turn_goes_on",
        "tests/session/test_compaction.py::test_no_call_is_ever_parted_from_its_results",
        "tests/session/test_compaction.py::test_the_newest_messages_stay_as_they_are",
        "tests/session/test_compaction.py::test_without_a_usable_summary_the_ends_of_the_conversation_stand_in",
    ),
    19: (
        "A steer is a second user message and one more model call.",
        "tests/session/test_run_control.py::test_a_steer_is_heard_by_the_next_model_call",
        "tests/session/test_run_control.py::test_a_steer_that_meets_the_final_answer_gets_a_model_call_of_its_own",
    ),
    20: (
        "A history seeds an empty log and is ignored by another; its answers are facts that are not asked for.",
        "tests/session/test_conversation.py::test_explicit_history_seeds_only_an_empty_log",
    ),
    21: (
        "Two sessions of one workspace share no fact.",
        "tests/session/test_reference_rows.py::test_sessions_of_one_workspace_share_no_fact",
        "src/fanfold/testing/conformance.py::test_threads_share_nothing_and_are_listed_once_they_have_facts",
    ),
    22: (
        "The next request carries id, name and arguments of a recorded call and the prose that came with it, also "
        "after a restart (its reasoning stays in the log: no wire here takes it back).",
        "tests/session/test_reference_rows.py"
        "::test_the_next_request_carries_the_call_as_it_was_made_with_the_words_about_it",
        "tests/providers/test_requests.py::test_chat_completions_gets_the_messages_in_its_own_form",
        "tests/providers/test_requests.py"
        "::test_messages_gets_alternating_roles_with_results_grouped_and_the_ends_cached",
    ),
    23: (
        "An approval of what does not wait is False and no fact.",
        "tests/session/test_confirmations.py::test_an_answer_for_what_does_not_wait_is_false_and_records_nothing",
    ),
    24: (
        "A provider that hangs is given up at its deadline.",
        "tests/session/test_limits_in_runs.py::test_a_provider_that_hangs_is_given_up_at_its_deadline",
        "tests/providers/test_http_transport.py::test_silence_is_a_timeout_that_names_the_setting",
    ),
    25: (
        "The fourth question of a run is asked of nobody (the model is told by a failed result and goes on; the run "
        "does not fail), and the count is the run's.",
        "tests/session/test_limits_in_runs.py"
        "::test_the_fourth_question_of_a_run_is_refused_and_that_of_the_next_run_is_not",
    ),
    26: (
        "An identical call again and again becomes a nudge, and the turn goes on.",
        "tests/session/test_confirmations.py::test_the_same_call_with_the_same_result_again_and_again_becomes_a_nudge",
    ),
    27: (
        "A state enables exactly one step, so no two can have one key (there are no components that could clash); a "
        "key that comes twice is refused before anything is done.",
        "tests/kernel/test_fold_and_decide.py::test_decide_is_total",
        "tests/session/test_foreign_code.py::test_calls_with_one_id_or_none_are_told_apart",
        "src/fanfold/testing/conformance.py::test_an_append_without_keys_of_its_own_writes_nothing",
        "tests/stores/test_jsonl.py::test_a_log_that_cannot_be_trusted_is_refused_by_line_and_left_alone",
    ),
    28: (
        "After a send or a stream any run id without a checkpoint is answered from the log, without a call.",
        "tests/session/test_reference_rows.py::test_any_run_id_without_a_checkpoint_is_answered_from_the_log",
    ),
}

GATE: dict[int, Row] = {
    29: (
        "While a stream is read everything else that changes the transcript is busy; when it was cancelled and read to "
        "its end, the next operation works at once.",
        "tests/session/test_stream_of_events.py"
        "::test_while_a_stream_is_read_everything_else_that_changes_the_transcript_is_refused",
        "tests/session/test_stream_of_events.py::test_whoever_hears_the_last_event_finds_the_session_free",
    ),
    30: (
        "A slash command is refused at once while a run is under way.",
        "tests/session/test_session_commands.py"
        "::test_a_command_is_refused_while_a_run_is_under_way_and_the_other_way_round",
    ),
    31: (
        "A send refuses others while it lasts, and its cancellation lets them in.",
        "tests/session/test_conversation.py::test_an_overlapping_operation_is_refused_at_once",
        "tests/session/test_conversation.py::test_cancelling_one_run_leaves_the_session_usable",
    ),
    32: (
        "A session is open at first, closed once, and then refuses by its id and registers nothing.",
        "tests/session/test_close.py::test_a_closed_session_refuses_everything_that_would_change_something",
        "tests/session/test_direct_tools.py::test_after_the_close_everything_is_refused_and_nothing_is_changed",
    ),
    33: (
        "A send that is closed under ends within a second and its run is cancelled (it records no interruption and so "
        "can be gone on from; one that was interrupted has its two messages).",
        "tests/session/test_close.py::test_a_send_that_is_closed_under_ends_soon_and_is_cancelled",
        "tests/session/test_interrupt.py::test_a_run_that_is_cut_off_records_nothing_and_goes_on_later",
        "tests/session/test_interrupt.py::test_an_interrupted_text_turn_adds_two_messages",
    ),
    34: (
        "To cancel an idle session is False and writes nothing.",
        "tests/session/test_run_control.py::test_an_idle_session_has_nothing_to_control",
    ),
    35: (
        "A cancelled stream leaves an interrupted history, which is saved; a second cancel is False.",
        "tests/session/test_interrupt.py::test_a_stop_is_recorded_whenever_it_comes",
        "tests/session/test_saved_sessions.py::test_an_interrupted_run_is_saved_as_interrupted",
        "tests/session/test_interrupt.py::test_clean_up_is_waited_for_and_not_cut_off_by_a_second_stop",
    ),
    36: (
        "The id of an earlier run cancels nothing.",
        "tests/session/test_interrupt.py::test_only_the_run_that_is_named_is_cancelled",
    ),
    37: (
        "A stream that fails changes neither the history nor what is saved.",
        "tests/session/test_reference_rows.py::test_a_stream_that_fails_changes_neither_the_history_nor_what_is_saved",
    ),
    38: (
        "A prompt with a history of its own leaves that of the session as it is.",
        "tests/session/test_runs.py::test_history_with_a_prompt_of_its_own_stays_as_it_is",
        "tests/session/test_attachments_in_runs.py::test_a_request_knows_its_keys",
    ),
    39: (
        "What cannot work is asked exactly once.",
        "tests/providers/test_retry.py::test_what_cannot_work_is_not_tried_again",
        "tests/session/test_reference_rows.py::test_a_stream_that_fails_changes_neither_the_history_nor_what_is_saved",
    ),
    40: (
        "An attachment that is too large is refused before anything is recorded, and its bytes are not in the error.",
        "tests/session/test_attachments_in_runs.py::test_bad_ones_are_refused_before_anything_is_recorded",
    ),
}

CONTROL: dict[int, Row] = {
    41: (
        "A steer is the same however often it is sent, is applied at the next model call, and leaves the queue.",
        "tests/session/test_run_control.py::test_a_steer_is_heard_by_the_next_model_call",
        "tests/session/test_run_control.py::test_a_retry_gets_the_receipt_as_it_stands_and_sends_nothing_twice",
    ),
    42: (
        "What was meant for an earlier turn, or has another payload under a known id, is refused.",
        "tests/session/test_run_control.py::test_the_checks_have_their_order",
        "tests/session/test_run_control.py::test_a_retry_gets_the_receipt_as_it_stands_and_sends_nothing_twice",
        "tests/session/test_run_control.py::test_the_revision_rises_with_each_model_turn_and_each_control",
    ),
    43: (
        "An interrupt has its receipt before it stops anything.",
        "tests/session/test_run_control.py::test_an_accepted_interrupt_has_its_receipt_before_it_stops_anything",
    ),
    44: (
        "The close settles controls that wait, and a late acknowledgement revives none.",
        "tests/session/test_run_control.py::test_an_accepted_steer_is_settled_only_by_a_run_that_does_not_succeed",
        "tests/session/test_run_control.py::test_a_late_acknowledgement_revives_nothing",
        "tests/session/test_close.py::test_closing_ends_all_that_is_under_way_and_leaves_nothing",
    ),
    45: (
        "Sixteen equal requests at once are one call of the hook and one receipt.",
        "tests/session/test_run_control.py::test_equal_requests_at_the_same_time_are_one",
    ),
    46: (
        "A control that a hook denies never gets into the queue.",
        "tests/session/test_reference_rows.py::test_a_control_that_a_hook_denies_never_gets_into_the_queue",
    ),
    47: (
        "A steer from its acceptance to its event, on the stream and in the record, and to the call that heard it.",
        "tests/session/test_run_control.py::test_a_steer_is_heard_by_the_next_model_call",
    ),
    48: (
        "An interrupt from its event to the cancelled run, to no snapshot, and to the next prompt.",
        "tests/session/test_interrupt.py::test_a_stop_is_recorded_whenever_it_comes",
    ),
}

RUNS: dict[int, Row] = {
    49: (
        "Of 32 that reserve one id at once, one starts the run.",
        "tests/session/test_runs.py::test_of_many_that_reserve_one_id_one_starts_the_run",
        "tests/session/test_runs.py::test_threads_that_reserve_one_id_start_one_run",
    ),
    50: (
        "Runs and events under the narrowest limits go on (a record has no locks that could be taken the wrong way).",
        "tests/session/test_runs.py::test_the_oldest_ended_runs_are_dropped",
        "tests/session/test_runs.py::test_a_run_under_way_is_never_dropped",
        "tests/session/test_run_events.py::test_a_run_of_100_000_events_holds_only_what_its_limits_allow",
    ),
    51: (
        "The count of events survives trimming and restoring, and limits hold for what is restored.",
        "tests/session/test_runs.py::test_the_count_of_events_survives_trimming_and_restoring",
        "tests/session/test_run_events.py::test_limits_hold_for_restored_events_too",
        "tests/session/test_saved_sessions.py"
        "::test_narrower_limits_hold_for_what_is_restored_and_the_rest_leaves_the_store_at_the_next_save",
    ),
    52: (
        "What comes after the end changes no status.",
        "tests/session/test_runs.py::test_what_comes_after_the_end_is_recorded_and_changes_nothing",
    ),
    53: (
        "The time of a run never goes back, also after it was restored.",
        "tests/session/test_runs.py::test_the_time_of_a_run_never_goes_back",
    ),
    54: (
        "A page and the snapshot tell the same count; an unknown run has neither.",
        "tests/session/test_run_events.py::test_pages_of_a_session_are_those_of_its_run",
        "tests/session/test_runs.py::test_a_record_tells_of_the_run_while_it_lasts_and_after",
    ),
    55: (
        "Pages together are all that is kept.",
        "tests/session/test_run_events.py::test_pages_together_are_all_that_is_kept",
        "tests/session/test_saved_sessions.py::test_pages_of_events_go_on_over_a_restart_without_a_gap_or_a_repetition",
    ),
    56: (
        "The catalogue has each type that is told, in a fixed order (its own: it has no types for what is not here); "
        "unknown ones are kept, other versions refused, and what is left out is no fault.",
        "tests/session/test_event_types.py::test_the_catalogue_has_each_type_that_is_told_and_no_other",
        "tests/session/test_event_types.py::test_the_catalogue_keeps_its_order",
        "tests/session/test_event_types.py::test_an_event_of_any_type_survives_its_json",
        "tests/session/test_event_types.py::test_an_envelope_of_another_version_is_refused",
        "tests/session/test_event_types.py::test_an_event_without_metadata_or_version_is_read",
    ),
    57: (
        "A cancellation wins over the success that it raced with, and a run ends once.",
        "tests/session/test_interrupt.py::test_a_stop_wins_over_the_answer_that_it_raced_with",
        "tests/session/test_interrupt.py::test_a_tool_that_swallows_a_cancellation_does_not_save_its_run",
        "tests/session/test_runs.py::test_what_comes_after_the_end_is_recorded_and_changes_nothing",
    ),
}

SAVED: dict[int, Row] = {
    58: (
        "To save without a store does nothing.",
        "tests/session/test_saved_sessions.py::test_saving_without_a_store_does_nothing",
    ),
    59: (
        "A resumed session has its policies, model, history, runs, events and children as they were (reports and "
        "traces are events of its runs; artifacts are files of the workspace, so they have no limits of a store).",
        "tests/session/test_saved_sessions.py::test_a_resumed_session_is_as_it_was",
        "tests/session/test_saved_sessions.py::test_every_option_is_saved_or_left_out_on_purpose",
        "tests/session/test_saved_sessions.py::test_saved_options_hold_in_the_resumed_session_and_the_callers_win",
        "tests/session/test_reference_rows.py::test_reports_and_the_whole_of_long_outputs_are_there_after_a_resume",
    ),
    60: (
        "Usage accumulates over saves, and the time of the first one stays.",
        "tests/session/test_saved_sessions.py::test_usage_accumulates_over_saves_and_the_time_of_the_first_one_stays",
    ),
    61: (
        "Of 65 runs the default keeps 64 and `unbounded` all.",
        "tests/session/test_saved_sessions.py::test_of_65_runs_the_default_keeps_64_and_unbounded_all_over_a_resume",
    ),
    62: (
        "A run that is over leaves no checkpoint; its id follows from the prefix.",
        "tests/session/test_checkpoints.py::test_a_run_that_is_over_leaves_no_checkpoint",
    ),
    63: (
        "A resumed checkpoint is a new run whose totals continue, and the old record stays; another session's is "
        "refused without a run; after the last round the model has no tools, and a spent budget stays spent.",
        "tests/session/test_checkpoints.py::test_another_node_goes_on_from_the_store_alone",
        "tests/session/test_checkpoints.py::test_a_checkpoint_that_is_not_for_this_session_is_refused_and_stays",
        "tests/session/test_reference_rows.py"
        "::test_rounds_that_were_used_up_before_the_crash_leave_a_call_without_tools_on_the_next_node",
        "tests/session/test_reference_rows.py"
        "::test_a_tool_budget_that_was_spent_before_the_crash_is_spent_on_the_next_node",
    ),
    64: (
        "A save that is cut off leaves the generation before it, forty times over; a checkpoint of a later version is "
        "refused and stays as it is.",
        "tests/session/test_reference_rows.py::test_a_generation_stands_until_the_next_one_is_whole_forty_times_over",
        "tests/session/test_saved_sessions.py"
        "::test_whenever_a_saving_process_dies_the_store_has_a_generation_that_was_true",
        "tests/session/test_checkpoints.py::test_a_checkpoint_that_is_not_for_this_session_is_refused_and_stays",
        "tests/session/test_saved_sessions.py::test_a_later_versions_session_is_refused_and_stays",
    ),
    65: (
        "To resume an unknown session creates nothing.",
        "tests/session/test_saved_sessions.py::test_an_unknown_session_is_not_found_and_nothing_is_made",
    ),
    66: (
        "Who has lost its lease writes nothing.",
        "src/fanfold/testing/store_conformance.py::test_a_lease_that_was_released_or_never_given_writes_nothing",
        "tests/session/test_checkpoints.py::test_a_writer_that_lost_its_lease_changes_nothing_and_says_so",
        "tests/session/test_saved_sessions.py"
        "::test_saving_while_another_node_is_at_work_is_refused_and_a_lost_lease_writes_nothing",
    ),
    67: (
        "Two processes that write to one store never make one number twice (revisions and places of records: there is "
        "no separate write-ahead log). Ours beside it: two processes on one thread; kill -9 at each point of a round; "
        "a full disk; a second node with only the store; the retry of a steer after its run.",
        "tests/stores/test_session_stores.py::TestFileSessionStore",
        "tests/stores/test_session_stores.py::TestSqliteSessionStore",
        "src/fanfold/testing/store_conformance.py::test_processes_that_count_at_once_lose_no_count",
        "src/fanfold/testing/store_conformance.py::test_processes_that_take_a_lease_in_turns_write_under_rising_epochs",
        "tests/stores/test_processes.py::test_processes_that_append_in_turns_never_share_a_seq",
        "tests/scenarios/test_crash.py::test_rivals_for_one_thread_are_refused_or_wait_and_never_write_the_same_seq",
        "tests/scenarios/test_kill_rounds.py"
        "::test_whenever_a_run_is_killed_it_goes_on_here_and_on_a_node_that_has_only_the_store",
        "tests/stores/test_processes.py::test_what_a_full_disk_refused_is_never_seen_and_the_next_append_works",
        "src/fanfold/testing/store_conformance.py::test_what_a_full_disk_refuses_is_never_seen_and_the_store_goes_on",
        "tests/session/test_checkpoints.py::test_another_node_goes_on_from_the_store_alone",
        "tests/session/test_run_control.py::test_a_retry_gets_the_receipt_as_it_stands_and_sends_nothing_twice",
        "tests/session/test_saved_sessions.py"
        "::test_a_control_that_is_asked_again_after_the_restart_gets_its_receipt_and_is_not_sent_twice",
    ),
}

GOVERNED: dict[int, Row] = {
    68: (
        "A guard's `soft` is told and goes on, `deny` stops, a missing method allows, what is no answer denies.",
        "tests/session/test_seed_tables.py::test_row_soft_tells_and_goes_on",
        "tests/session/test_seed_tables.py::test_row_deny_tells_and_fails_the_call",
        "tests/session/test_budget_gate.py::test_row_7_a_missing_method_allows",
        "tests/session/test_budget_gate.py::test_row_4_a_check_that_raises_denies",
        "tests/session/test_budget_gate.py::test_row_5_a_malformed_answer_denies",
        "tests/session/test_budget_gate.py::test_row_6_a_check_that_takes_too_long_denies_in_bounded_time",
        "tests/session/test_budget_in_runs.py::test_a_guard_that_hangs_raises_or_babbles_denies_a_write_in_time",
    ),
    69: (
        "A call of the host obeys the tool budget though it asks no rule.",
        "tests/session/test_reference_rows.py::test_a_call_of_the_host_that_asks_no_rule_still_obeys_the_tool_budget",
    ),
    70: (
        "An agent that plans is denied a write that others would be asked about; deny beats a later allow.",
        "tests/session/test_reference_rows.py"
        "::test_a_session_that_plans_is_denied_a_write_that_others_would_be_asked_about",
        "tests/session/test_confirmations.py::test_a_deny_rule_beats_a_later_allow_rule_and_what_the_default_would_ask",
    ),
    71: (
        "Two requests for approval never have one id, so none of them has to be rejected for it (calls get ids of "
        "their own when they are recorded, requests when they surface).",
        "tests/session/test_confirmations.py::test_requests_of_children_with_one_id_are_told_apart",
        "tests/session/test_foreign_code.py::test_calls_with_one_id_or_none_are_told_apart",
        "tests/session/test_foreign_code.py::test_two_fan_outs_with_one_task_id_are_asked_for_apart",
    ),
    72: (
        "Each question gets its own answer, whichever is answered first.",
        "tests/session/test_reference_rows.py::test_each_of_two_questions_gets_its_own_answer",
        "tests/session/test_reference_rows.py"
        "::test_questions_that_children_ask_at_the_same_time_each_get_their_own_answer",
    ),
}

ROWS: dict[int, Row] = LOG | GATE | CONTROL | RUNS | SAVED | GOVERNED


def test_every_reference_row_is_there_once() -> None:
    assert list(ROWS) == list(range(1, 73))
    assert sum(map(len, (LOG, GATE, CONTROL, RUNS, SAVED, GOVERNED))) == len(ROWS)


@pytest.mark.parametrize("number", ROWS)
def test_the_tests_of_a_reference_row_exist(number: int) -> None:
    check_row(ROWS[number])

"""The rows of workflow runs: the faults that others had, the rules, and the hard cases, with the tests that would tell.

Numbers are those of the specification, letters count its sentences. A row that asks for what there is not here says so
and why; its tests are those of what holds instead.
"""

import pytest

from tests.support.rows import Row, check_row

_AGENTS = "tests/session/test_workflow_agents.py"
_CALLS = "tests/workflow/test_calls_and_identity.py"
_CONTROL = "tests/workflow/test_control_of_runs.py"
_CRASHES = "tests/workflow/test_crashes.py"
_ENTRIES = "tests/kernel/test_run_entries.py"
_EVENTS = "tests/workflow/test_events_of_runs.py"
_FAN_OUT = "tests/workflow/test_fan_out_in_scripts.py"
_FILES = "tests/stores/test_run_files.py"
_JOURNAL = "tests/kernel/test_run_journal.py"
_LAUNCH = "tests/workflow/test_launch.py"
_LIMITS = "tests/workflow/test_limits_of_runs.py"
_META = "tests/kernel/test_workflow_meta.py"
_MONEY = "tests/workflow/test_budget_and_breaker.py"
_ORDER = "tests/workflow/test_order_of_a_launch.py"
_RECORDS = "tests/workflow/test_records_of_a_run.py"
_REPORTS = "tests/workflow/test_reports_of_a_resume.py"
_REPEATS = "tests/workflow/test_calls_not_repeated.py"
_RESUME = "tests/workflow/test_resume.py"
_RETRY = "tests/providers/test_retry.py"
_SANDBOX = "tests/workflow/test_sandbox.py"
_SEAM = "src/fanfold/testing/run_files_conformance.py"
_SHAPES = "tests/kernel/test_structured.py"
_STOPS = "tests/workflow/test_stops.py"
_TOOL = "tests/session/test_workflow_tool.py"

_ANY_BYTE = f"{_CRASHES}::test_a_journal_that_ends_at_any_byte_is_gone_on_with_and_repeats_nothing_whole"
_CAP = f"{_FAN_OUT}::test_a_hundred_items_keep_their_order_and_the_cap_is_reached_and_kept"
_DEATH = f"{_CRASHES}::test_a_process_may_die_before_any_change_of_the_disk"
_FLIPPED = f"{_CRASHES}::test_a_flipped_bit_costs_calls_and_never_gives_another_value"
_KILLED = "tests/scenarios/test_kill_workflow.py::test_a_recorded_answer_is_never_asked_for_again"
_PART = f"{_CALLS}::test_what_is_a_part_of_the_meaning_runs_that_call_alone"
_NO_PART = f"{_CALLS}::test_what_is_no_part_of_the_meaning_costs_nothing"
_REFUSED_WRITE = (
    "tests/workflow/test_full_disk.py::test_a_write_that_is_refused_ends_the_run_as_failed_and_gives_nobody_its_value"
)
_REPLAY = f"{_RESUME}::test_a_completed_run_replays_to_the_same_bytes_for_nothing"
_SPENT = f"{_MONEY}::test_at_the_limit_launches_end_and_what_is_under_way_is_recorded"
_STOPPED = f"{_STOPS}::test_wherever_a_run_is_stopped_it_is_told_once_and_can_be_gone_on_with"
_VERDICT = (
    "tests/workflow/test_verdicts.py::test_branches_of_which_none_succeeds_are_a_failed_run_with_its_value_and_counts"
)
_VALUES = "tests/workflow/test_values.py::test_an_odd_value_is_the_same_in_each_attempt_or_an_error_in_the_first"

DEFECTS: dict[str, Row] = {
    "D1": (
        "Equal calls of one run never share an answer, in sequence or at once, and a resume gives each its own.",
        f"{_CALLS}::test_equal_calls_in_sequence_have_an_answer_each_and_keep_them",
        f"{_CALLS}::test_equal_calls_at_once_keep_their_answers_whatever_order_they_end_in",
        f"{_ENTRIES}::test_claims_of_equal_calls_are_a_bijection",
    ),
    "D2": (
        "No text of one field of a call can pass for another field.",
        "tests/kernel/test_call_identity.py::test_no_text_can_pass_for_another_field",
        f"{_RECORDS}::test_labels_with_separators_in_them_are_no_part_of_what_a_call_means",
    ),
    "D3": (
        "A call is known by a whole SHA-256.",
        "tests/kernel/test_call_identity.py::test_an_identity_is_the_digest_of_sorted_json",
    ),
    "D4": ("Another label costs nothing, and another model or agent is another call.", _NO_PART, _PART),
    "D5": (
        "An agent that passes the budget is recorded and counted before anything is refused.",
        _SPENT,
        "tests/workflow/test_full_disk.py::test_a_write_that_is_refused_ends_the_run_as_failed_and_gives_nobody_its_value",
    ),
    "D6": ("What a run has spent stays spent, whoever resumes it.", _SPENT),
    "D7": ("A journal whose end is torn is repaired.", _ANY_BYTE, f"{_CRASHES}::test_so_it_is_with_files"),
    "D8": (
        "A new run never touches an earlier one.",
        f"{_LAUNCH}::test_a_taken_run_id_is_never_overwritten",
        f"{_SEAM}::test_a_run_is_created_once_and_nothing_of_it_is_overwritten",
    ),
    "D9": (
        "A branch that fails waits for its siblings, whose answers are recorded.",
        f"{_FAN_OUT}::test_a_branch_that_raises_costs_no_sibling",
        f"{_FAN_OUT}::test_on_request_the_first_failure_in_input_order_is_raised_once_all_have_ended",
        "tests/workflow/test_attacks.py"
        "::test_agents_that_a_script_leaves_running_are_ended_and_recorded_before_their_run_ends",
    ),
    "D10": ("The repair of an answer stays in the place of its agent.", f"{_AGENTS}::test_repairs_stay_within_the_cap"),
    "D11": (
        "One gate holds for a launch and for a nested workflow.",
        f"{_LAUNCH}::test_what_the_permissions_deny_is_denied_as_a_launch_and_as_a_nested_workflow",
        f"{_LAUNCH}::test_a_nested_workflow_that_is_to_be_asked_about_is_not_run_unasked",
        f"{_TOOL}::test_permissions_hold_for_a_workflow_by_name",
        "tests/session/test_workflow_permissions.py"
        "::test_the_policy_of_a_session_decides_on_nested_workflows_and_on_launches_of_its_host",
    ),
    "D12": (
        "A recorded value against its schema is counted as rejected, and its call runs again.",
        f"{_RESUME}::test_a_recorded_value_against_its_schema_runs_again_and_is_reported",
    ),
    "D13": (
        "A name that some disk would not take, or take for another one, names no workflow and no run.",
        f"{_META}::test_unsafe_names_are_refused",
        f"{_LAUNCH}::test_names_that_differ_in_case_only_are_one_name",
        f"{_SEAM}::test_ids_that_differ_by_case_only_never_meet",
    ),
    "D14": (
        "Where there is no POSIX everything can be imported, and a run has one holder.",
        "tests/stores/test_windows_lock.py::test_a_system_without_posix_has_locks_too",
    ),
    "D15": (
        "The first run sees a value as the journal gives it back.",
        _VALUES,
        "tests/workflow/test_values.py::test_what_a_script_does_to_its_value_does_not_reach_the_journal",
    ),
    "D16": (
        "A journal is split at newlines alone.",
        f"{_JOURNAL}::test_what_only_looks_like_the_end_of_a_line_splits_nothing",
        f"{_SEAM}::test_lines_are_split_at_newlines_alone",
    ),
    "D17": (
        "Whether a run is alive says its lock, not a word in its snapshot.",
        _DEATH,
        "tests/cli/test_workflow_processes.py::test_a_killed_run_is_interrupted_and_resumed",
        f"{_SEAM}::test_kill_9_frees_the_run_and_keeps_all_that_was_reported",
    ),
    "D18": (
        "Snapshots do not grow with a run, and events keep to their bound.",
        f"{_EVENTS}::test_of_very_many_failures_some_are_told_and_all_are_counted",
        f"{_CRASHES}::test_a_journal_of_fifty_thousand_answers_is_gone_on_with",
        f"{_SEAM}::test_events_keep_the_newest_and_who_follows_misses_nothing",
        f"{_EVENTS}::test_whatever_a_slow_disk_has_no_room_for_the_end_is_kept_and_how_much_was_left_out",
    ),
    "D19": (
        "A failure says what, where, and on which line.",
        f"{_LAUNCH}::test_a_script_that_raises_fails_with_its_line_and_its_trace",
        f"{_FAN_OUT}::test_a_branch_that_raises_costs_no_sibling",
        "tests/workflow/test_sandbox_runs.py::test_a_failed_slot_tells_which_agent_and_the_line_of_the_script",
    ),
    "D20": (
        "Answers from the journal are free: neither the cap nor a spent budget keeps them back.",
        f"{_LIMITS}::test_agent_1001_is_refused_and_answers_from_the_journal_are_free",
        _SPENT,
    ),
}

LAUNCH: dict[str, Row] = {
    "5.1a": (
        "The name is looked up, then come metadata, arguments, permission, what a resume needs, the run itself, and "
        "the first write; code of the script runs behind all that may refuse it.",
        f"{_ORDER}::test_of_several_faults_the_first_in_order_is_told",
        f"{_ORDER}::test_of_several_faults_of_a_resume_the_first_in_order_is_told",
        f"{_ORDER}::test_a_resume_that_cannot_be_executes_nothing_of_its_script",
        f"{_ORDER}::test_a_file_without_sound_metadata_is_never_executed",
    ),
    "5.1b": (
        "Every refusal is a `WorkflowInputError` with a code of its own, and leaves every file as it was (a spent "
        "budget is `BUDGET_EXHAUSTED`, as everywhere; there are some codes more).",
        f"{_LAUNCH}::test_an_unknown_workflow_is_refused_with_what_there_is",
        f"{_LAUNCH}::test_what_is_no_run_id_is_refused",
        f"{_LAUNCH}::test_a_run_that_there_is_not_is_not_found",
        f"{_LAUNCH}::test_a_result_that_is_no_json_fails_the_run_and_says_where",
        f"{_LAUNCH}::test_a_run_whose_files_cannot_be_read_is_refused_and_let_go",
        f"{_ORDER}::test_a_module_that_raises_at_a_resume_leaves_its_run_as_it_was",
    ),
    "5.1c": (
        "The launch is answered while its agents run.",
        f"{_LAUNCH}::test_the_launch_answers_before_the_first_agent_ends",
        f"{_TOOL}::test_the_answer_does_not_wait_for_the_agents",
    ),
    "5.1d": (
        "Arguments that come as the text of an object are parsed once, and any other text is refused.",
        f"{_LAUNCH}::test_arguments_as_the_json_text_of_an_object_are_parsed_once",
        f"{_META}::test_the_text_of_an_object_is_parsed_once",
        f"{_META}::test_args_that_are_no_object_are_refused",
    ),
}

SCRIPT: dict[str, Row] = {
    "5.2a": (
        "A thunk is something to call: a bare awaitable is refused and closed.",
        f"{_FAN_OUT}::test_a_bare_awaitable_is_refused_and_closed",
    ),
    "5.2b": (
        "Results keep input order and length; no items give none; whatever can be iterated is taken.",
        _CAP,
        f"{_FAN_OUT}::test_generators_empty_lists_and_single_items_are_fine",
    ),
    "5.2c": (
        "A failed slot is None and a failure record with place, index, stage, code and line.",
        f"{_FAN_OUT}::test_a_branch_that_raises_costs_no_sibling",
        f"{_FAN_OUT}::test_a_stage_that_returns_none_goes_on_and_one_that_raises_ends_its_item",
        f"{_SANDBOX}::test_a_failed_slot_tells_its_line_wherever_it_failed",
    ),
    "5.2d": (
        "On request the first failure in input order is raised once all have ended.",
        f"{_FAN_OUT}::test_on_request_the_first_failure_in_input_order_is_raised_once_all_have_ended",
        f"{_SANDBOX}::test_on_request_the_first_failure_in_input_order_is_raised_once_all_have_ended",
    ),
    "5.2e": (
        "A stop, a spent budget, the cap, a key or a write that is refused, and another way of a script where that is "
        "strict are never made a None.",
        "tests/workflow/test_strict_resumes.py"
        "::test_another_way_with_the_same_answers_ends_the_run_and_launches_nothing",
        "tests/workflow/test_strict_resumes.py::test_what_follows_from_an_answer_that_is_new_is_no_other_way",
        _SPENT,
        f"{_FAN_OUT}::test_agents_beyond_the_cap_raise_and_never_become_none",
        f"{_MONEY}::test_where_the_provider_refuses_for_good_nothing_more_is_launched",
        _REFUSED_WRITE,
        _STOPPED,
        f"{_SANDBOX}::test_an_ending_error_is_raised_once_what_runs_has_ended_and_nothing_more_is_begun",
        f"{_RECORDS}::test_a_recorded_value_that_the_disk_does_not_give_ends_the_run_and_is_no_empty_slot",
    ),
    "5.2f": (
        "The status tells whether anything failed, and a fleet of which nobody succeeded has failed.",
        _VERDICT,
        f"{_FAN_OUT}::test_a_fleet_in_which_all_fail_has_failed",
        f"{_CALLS}::test_of_five_equal_voters_only_the_two_that_failed_run_again",
        f"{_CONTROL}::test_a_run_that_is_ended_keeps_what_it_finished",
    ),
    "5.2g": (
        "The notification has all counts, also those that are zero.",
        f"{_CONTROL}::test_one_agent_may_be_skipped_and_stays_skipped",
        f"{_EVENTS}::test_the_notification_tells_what_came_of_it_and_what_it_took",
    ),
    "5.2h": (
        "A stage gets as many of value, item and index as it takes, may be plain, and goes on with None.",
        f"{_FAN_OUT}::test_stages_get_what_they_take_and_may_be_plain",
        f"{_FAN_OUT}::test_a_stage_that_returns_none_goes_on_and_one_that_raises_ends_its_item",
    ),
    "5.2i": (
        "A phase is that of its lane and told once per run; the one that a call names wins.",
        f"{_FAN_OUT}::test_each_lane_has_its_own_phase_and_each_title_is_told_once",
        f"{_EVENTS}::test_a_phase_that_a_nested_workflow_has_too_is_told_once",
        f"{_EVENTS}::test_a_branch_is_in_the_phase_that_it_was_begun_in_until_it_has_its_own",
    ),
    "5.2j": (
        "A nested workflow has the gate of a launch, arguments of its own and the limits of the run around it, is one "
        "level deep, and what fails in it is raised where it was asked for.",
        f"{_LAUNCH}::test_what_the_permissions_deny_is_denied_as_a_launch_and_as_a_nested_workflow",
        f"{_ORDER}::test_the_arguments_of_a_nested_workflow_are_looked_at_as_those_of_a_launch",
        f"{_LIMITS}::test_nested_workflows_run_within_the_places_of_the_run_around_them",
        f"{_LIMITS}::test_agents_of_nested_workflows_count_for_the_cap",
        f"{_CALLS}::test_a_nested_workflow_asks_for_itself",
        f"{_LIMITS}::test_nested_workflows_spend_the_budget_of_the_run_around_them",
        f"{_LIMITS}::test_what_goes_wrong_in_a_nested_workflow_is_raised_where_it_was_asked_for",
        f"{_FAN_OUT}::test_a_nested_workflow_cannot_nest_and_says_so_where_it_tried",
    ),
    "5.2k": (
        "A place is held while an agent runs and not while it waits for room in the budget or for a person; a repair "
        "stays in it (agents of a run start none of their own, and a nested workflow has no place itself).",
        f"{_AGENTS}::test_an_approval_of_an_agent_surfaces_at_its_session_and_frees_its_place",
        f"{_AGENTS}::test_repairs_stay_within_the_cap",
        f"{_LIMITS}::test_agents_that_wait_for_room_in_the_budget_hold_no_place",
        f"{_LIMITS}::test_agents_that_all_wait_for_a_person_keep_no_branch_from_being_begun",
        f"{_LIMITS}::test_nested_workflows_spend_the_budget_of_the_run_around_them",
    ),
    "5.2l": (
        "A prompt is text that is not blank, and a schema JSON that something can match.",
        f"{_CALLS}::test_a_call_that_cannot_be_meant_so_is_refused_by_name",
    ),
}

IDENTITY: dict[str, Row] = {
    "5.3a": (
        "A call is the SHA-256 of its prompt, schema, agent with its definition, model, most steps, isolation and "
        "tools, byte by byte (there is no effort that one could ask for).",
        "tests/kernel/test_call_identity.py::test_whatever_a_call_means_counts",
        "tests/kernel/test_call_identity.py::test_each_byte_of_a_prompt_counts",
        "tests/kernel/test_call_identity.py::test_whatever_makes_an_agent_do_what_it_does_counts",
        _PART,
        f"{_CALLS}::test_another_model_or_agent_behind_the_same_name_is_another_call",
        f"{_CALLS}::test_agents_of_two_names_that_are_the_same_otherwise_are_asked_two_calls",
    ),
    "5.3b": (
        "Label, phase, time, repetitions, run, arguments and place are no part of it.",
        f"{_CALLS}::test_calls_that_are_inserted_or_moved_cost_only_themselves",
        _NO_PART,
        f"{_ENTRIES}::test_labels_and_phases_never_matter",
        f"{_RESUME}::test_arguments_that_differ_are_refused_with_their_names_and_may_be_forked",
    ),
    "5.3c": (
        "Where a call stands follows from the script, whatever the timing.",
        f"{_SANDBOX}::test_the_order_in_which_agents_end_moves_no_place",
        f"{_SANDBOX}::test_a_script_asks_the_same_at_the_same_places_here_and_in_the_sandbox",
        f"{_ENTRIES}::test_the_order_of_completion_never_matters",
    ),
    "5.3d": (
        "A call gets what was recorded for it at its place, else the oldest that nobody has claimed, else it runs.",
        f"{_ENTRIES}::test_its_own_place_comes_before_the_oldest",
        f"{_ENTRIES}::test_what_was_moved_to_a_place_stands_there_from_then_on",
        f"{_ENTRIES}::test_the_oldest_is_the_one_that_was_issued_first_wherever_it_stands_now",
        f"{_ENTRIES}::test_claims_of_equal_calls_are_a_bijection",
        f"{_ENTRIES}::test_each_call_has_the_same_answer_in_every_later_attempt",
    ),
    "5.3e": (
        "Equal calls share an answer only on request, and then each has a copy.",
        f"{_CALLS}::test_shared_calls_have_one_answer_and_a_copy_each",
        f"{_CALLS}::test_equal_calls_in_sequence_have_an_answer_each_and_keep_them",
    ),
    "5.3f": (
        "Calls that are inserted, taken away or moved cost themselves alone, and another label costs nothing.",
        f"{_CALLS}::test_calls_that_are_inserted_or_moved_cost_only_themselves",
        f"{_CALLS}::test_a_call_that_is_gone_is_reported_and_the_others_are_not_touched",
        f"{_ENTRIES}::test_only_what_is_new_or_changed_is_run",
        _NO_PART,
    ),
}

JOURNAL: dict[str, Row] = {
    "5.4a": (
        "Header, start, result and end of an attempt have all that a reader needs, each line with its checksum.",
        f"{_RECORDS}::test_a_journal_has_all_that_a_reader_needs_to_go_on_with_the_run",
        f"{_RECORDS}::test_the_journal_tells_the_script_of_each_attempt",
        f"{_RECORDS}::test_that_an_agent_was_started_is_in_the_journal_while_it_runs",
        f"{_JOURNAL}::test_a_record_comes_back_from_its_line",
    ),
    "5.4b": (
        "A record is one write of whole lines and synced before its value is handed on (always: there is no setting "
        "that would do without).",
        _REFUSED_WRITE,
        "tests/workflow/test_power_loss.py::test_no_answer_that_a_script_was_given_is_asked_for_again",
        f"{_FILES}::test_a_durable_append_is_synced_and_another_is_not",
        f"{_SEAM}::test_kill_9_frees_the_run_and_keeps_all_that_was_reported",
    ),
    "5.4c": (
        "A value of more than 256 KiB lies in a file of its own, which is there before the journal names it.",
        f"{_RECORDS}::test_a_value_beyond_256_kib_is_kept_as_a_file_before_the_journal_names_it",
        f"{_RESUME}::test_a_long_value_lies_in_a_blob_and_a_lost_blob_costs_only_its_call",
        f"{_FILES}::test_a_damaged_blob_is_none_until_it_is_put_again",
    ),
    "5.4d": (
        "A torn end is put aside, cut off and told.",
        f"{_CRASHES}::test_so_it_is_with_files",
        f"{_REPORTS}::test_a_torn_end_is_told_with_the_file_that_has_it_now",
        f"{_FILES}::test_what_is_cut_off_a_journal_is_kept_byte_by_byte",
    ),
    "5.4e": (
        "A damaged record in the middle is passed over and told, its call runs again; strict ones are refused.",
        f"{_REPORTS}::test_lines_of_the_journal_that_are_passed_over_are_told_by_number",
        f"{_RESUME}::test_a_damaged_value_is_not_used_and_its_call_runs_again",
        _FLIPPED,
    ),
    "5.4f": (
        "Records of an unknown type are passed over, and a later version is refused.",
        f"{_JOURNAL}::test_types_of_later_versions_are_passed_over_and_kept",
        f"{_JOURNAL}::test_a_journal_of_a_later_version_is_refused_whatever_else_it_says",
    ),
    "5.4g": ("What a script gets has been through JSON, in the first run too.", _VALUES),
    "5.4h": (
        "The snapshot is small, replaced as a whole, and has status, owner and what all attempts spent (the lock is "
        "the lease, and of one machine, so there is no name of a host).",
        f"{_SEAM}::test_whole_files_are_replaced_and_read_by_anybody",
        "tests/stores/test_replaced_run_files.py"
        "::test_who_has_opened_a_file_that_is_replaced_reads_the_old_one_to_its_end",
        f"{_EVENTS}::test_of_very_many_failures_some_are_told_and_all_are_counted",
        f"{_EVENTS}::test_what_a_run_has_spent_never_falls",
    ),
    "5.4i": (
        "The output is there before the notification, and a refused resume touches nothing.",
        f"{_RESUME}::test_a_journal_that_is_gone_is_never_taken_for_an_empty_one",
        f"{_CONTROL}::test_an_agent_starts_before_it_ends_and_the_output_is_there_with_the_notification",
        f"{_RESUME}::test_arguments_that_differ_are_refused_with_their_names_and_may_be_forked",
    ),
    "5.4j": (
        "Events have a file of their own, with a bound.",
        f"{_SEAM}::test_events_keep_the_newest_and_who_follows_misses_nothing",
        f"{_SEAM}::test_one_great_batch_of_events_keeps_its_end",
    ),
}

RESUME: dict[str, Row] = {
    "5.5a": (
        "The same script with the same arguments replays all that went well and runs the rest.",
        f"{_RESUME}::test_what_failed_runs_again_and_nothing_else",
        _REPLAY,
    ),
    "5.5b": (
        "What failed, was cancelled or is in doubt runs again under its old key, by which a tool can know it; a call "
        "that is marked as one that must not simply be repeated is skipped, or waits for who goes on to decide.",
        f"{_RESUME}::test_a_call_keeps_its_idempotency_key_over_its_attempts",
        "tests/workflow/test_keys_of_tools.py::test_a_tool_that_runs_again_after_a_stop_is_given_the_same_key",
        f"{_ENTRIES}::test_what_has_no_answer_runs_again_under_its_key",
        f"{_REPEATS}::test_a_skipped_call_gives_none_in_this_and_every_later_resume_and_nothing_runs",
        f"{_REPEATS}::test_a_call_that_asks_pauses_its_run_and_the_journal_stays_as_it_was",
        f"{_REPEATS}::test_who_goes_on_decides_of_the_calls_that_ask",
        "tests/kernel/test_run_repeats.py::test_one_that_was_cut_off_is_a_repeat_whatever_it_had_told",
        _DEATH,
    ),
    "5.5c": (
        "A script in a file may be edited, which is told with both digests and refused where it is strict (a "
        "registered function has no text to compare).",
        f"{_RESUME}::test_a_script_may_be_edited_unless_it_is_strict",
        f"{_REPORTS}::test_a_changed_script_is_told_once_with_what_it_was_and_what_it_is",
    ),
    "5.5d": (
        "Arguments that are left out are the saved ones, and equal ones are fine.",
        f"{_RESUME}::test_equal_arguments_are_fine_and_the_saved_ones_are_used_where_none_are_given",
    ),
    "5.5e": (
        "Other arguments are refused by name; a fork has a new id, the name of its parent and a copy of its answers.",
        f"{_RESUME}::test_arguments_that_differ_are_refused_with_their_names_and_may_be_forked",
        f"{_JOURNAL}::test_a_fork_begins_with_the_answers_of_its_parent_and_with_nothing_spent",
        "tests/workflow/test_forks_go_the_same_way.py"
        "::test_what_is_built_on_chance_and_time_is_answered_in_a_fork_and_in_the_fork_of_one",
    ),
    "5.5f": (
        "Limits and budget may be others, and what was spent stays so.",
        f"{_LIMITS}::test_a_resume_may_have_other_limits_and_another_budget",
        _SPENT,
    ),
    "5.5g": (
        "Another definition or model runs those calls.",
        f"{_CALLS}::test_another_model_or_agent_behind_the_same_name_is_another_call",
    ),
    "5.5h": (
        "A run that is active, here or elsewhere, is refused and nothing is written.",
        f"{_RESUME}::test_a_run_that_is_active_is_refused_here_and_elsewhere",
        f"{_ORDER}::test_a_resume_that_cannot_be_executes_nothing_of_its_script",
        f"{_FILES}::test_a_refused_hold_or_create_changes_no_file",
    ),
    "5.5i": (
        "A run whose owner died is taken over as the next attempt.",
        _DEATH,
        "tests/workflow/test_races.py::test_of_several_that_go_on_with_one_run_each_attempt_has_a_number_of_its_own",
        _KILLED,
    ),
    "5.5j": (
        "A journal that is gone is refused and never taken for an empty one.",
        f"{_RESUME}::test_a_journal_that_is_gone_is_never_taken_for_an_empty_one",
        f"{_SEAM}::test_a_journal_that_has_gone_is_missed_and_never_begun_anew",
    ),
    "5.5k": ("A run of another workflow is refused.", f"{_RESUME}::test_a_run_of_another_workflow_is_refused"),
    "5.5l": ("A completed run replays to the same value with no agent.", _REPLAY),
    "5.5m": (
        "A stopped run is like a failed one, and a stop deletes nothing.",
        f"{_CONTROL}::test_a_run_that_is_ended_keeps_what_it_finished",
        _STOPPED,
    ),
    "5.5n": (
        "A journal of a later version is refused (there is no earlier one yet; the digests of this one are pinned).",
        f"{_JOURNAL}::test_a_journal_of_a_later_version_is_refused_whatever_else_it_says",
        "tests/kernel/test_call_identity.py::test_identities_of_earlier_journals_stay_as_they_are",
    ),
}

MONEY: dict[str, Row] = {
    "5.6a": (
        "Usage has prompt, completion and cached tokens, uses of tools and time; what nobody told is estimated and "
        "flagged, and is not zero (model calls are not counted by themselves).",
        f"{_MONEY}::test_usage_that_nobody_told_is_estimated_and_flagged",
        f"{_EVENTS}::test_the_notification_tells_what_came_of_it_and_what_it_took",
        f"{_JOURNAL}::test_unknown_usage_is_told_and_is_not_zero",
        "tests/workflow/test_unknown_usage.py"
        "::test_an_agent_that_was_cut_off_leaves_the_totals_of_its_run_flagged_for_good",
        "tests/workflow/test_unknown_usage.py::test_an_agent_that_is_left_behind_flags_what_its_attempt_has_spent",
    ),
    "5.6b": (
        "Every attempt is paid for: invalid, repeated, cancelled, failed.",
        f"{_MONEY}::test_what_failed_was_paid_for_and_counts_over_all_attempts",
        f"{_AGENTS}::test_answers_that_never_match_fail_with_all_that_they_cost_and_their_last_text",
        f"{_STOPS}::test_a_run_is_stopped_while_an_answer_is_repaired",
        f"{_LIMITS}::test_a_failure_is_paid_for_out_of_the_budget",
    ),
    "5.6c": (
        "A replay costs nothing, and totals are those of the attempt and of the run.",
        _REPLAY,
        f"{_EVENTS}::test_the_notification_tells_what_came_of_it_and_what_it_took",
        f"{_JOURNAL}::test_what_was_spent_is_the_sum_over_all_results_of_all_attempts",
    ),
    "5.6d": (
        "Who is launched has reserved its room; those under way end and are recorded; at the limit no other one "
        "begins, and the run pauses.",
        _SPENT,
        "tests/orchestration/test_control_and_limits.py"
        "::test_a_wide_fan_out_passes_its_budget_by_no_more_than_running_calls_were_underestimated",
    ),
}

STOP: dict[str, Row] = {
    "5.7a": (
        "After a stop nothing is launched, agents are cancelled, their processes killed, what finished is recorded, "
        "and it is told once.",
        _STOPPED,
        f"{_STOPS}::test_nothing_that_a_command_has_started_outlives_the_stop",
        f"{_CONTROL}::test_agents_that_wait_for_a_place_are_not_launched_any_more",
    ),
    "5.7b": (
        "To stop twice changes nothing, and a pause is a stop that says `paused`.",
        f"{_CONTROL}::test_a_run_that_is_ended_keeps_what_it_finished",
    ),
    "5.7c": ("Kill -9 at any byte leaves a run that can be gone on with.", _ANY_BYTE, _KILLED, _DEATH),
    "5.7d": (
        "An agent has a time and a number of attempts (that a model says nothing is bounded at its provider).",
        f"{_LIMITS}::test_an_agent_that_takes_longer_than_its_time_fails_and_is_tried_as_often_as_was_asked",
        "tests/providers/test_http_transport.py::test_silence_is_a_timeout_that_names_the_setting",
    ),
    "5.7e": (
        "A key or a quota that is refused for good pauses the run, with the time of its end where that is known; who "
        "is under way ends and is recorded.",
        "tests/workflow/test_under_way.py::test_who_is_under_way_when_the_breaker_opens_ends_and_replays",
        f"{_MONEY}::test_where_the_provider_refuses_for_good_nothing_more_is_launched",
        f"{_MONEY}::test_a_server_that_is_down_pauses_the_run_instead_of_failing_every_agent",
        f"{_MONEY}::test_failures_with_successes_in_between_open_no_breaker",
    ),
}

CASES: dict[str, Row] = {
    "7.1": (
        "Metadata that are none are `bad_meta`: no file is made and nothing of the script is executed.",
        f"{_META}::test_bad_meta_data_are_refused_by_field",
        f"{_META}::test_meta_that_is_no_dict_is_refused",
        f"{_ORDER}::test_a_file_without_sound_metadata_is_never_executed",
        f"{_LAUNCH}::test_a_file_that_is_no_workflow_is_listed_with_its_problem_and_never_run",
    ),
    "7.2": (
        "Names of devices, with a dot at the end, or that differ in case only are refused.",
        f"{_META}::test_unsafe_names_are_refused",
        f"{_LAUNCH}::test_names_that_differ_in_case_only_are_one_name",
    ),
    "7.3": (
        "What is denied is denied as a launch and as a nested workflow.",
        f"{_LAUNCH}::test_what_the_permissions_deny_is_denied_as_a_launch_and_as_a_nested_workflow",
    ),
    "7.4": (
        "What a model adds to its call is refused, and none of its text is run.",
        f"{_TOOL}::test_a_launch_that_cannot_be_is_an_error_the_model_reads",
        f"{_LAUNCH}::test_inline_scripts_are_off_unless_the_host_turns_them_on",
    ),
    "7.5": (
        "Text of an object is parsed; other text, lists, NaN, what is too large or too deep is `bad_args`.",
        f"{_META}::test_the_text_of_an_object_is_parsed_once",
        f"{_META}::test_args_that_are_no_object_are_refused",
        f"{_META}::test_a_bomb_of_brackets_is_refused",
        f"{_LAUNCH}::test_arguments_that_are_no_json_object_are_refused",
    ),
    "7.6": (
        "The call of the tool is answered before the first agent has ended.",
        f"{_TOOL}::test_the_answer_does_not_wait_for_the_agents",
    ),
    "7.7": (
        "A script that cannot be imported is refused, and is never half a run.",
        f"{_LAUNCH}::test_a_script_whose_module_raises_is_refused_at_its_launch",
        f"{_ORDER}::test_a_module_that_raises_at_a_resume_leaves_its_run_as_it_was",
    ),
    "7.8": (
        "The same prompt twice has two answers and two entries.",
        f"{_CALLS}::test_equal_calls_in_sequence_have_an_answer_each_and_keep_them",
    ),
    "7.11": (
        "Of five equal voters the two that failed run again.",
        f"{_CALLS}::test_of_five_equal_voters_only_the_two_that_failed_run_again",
    ),
    "7.12": (
        "A separator in a label or a prompt makes no two calls one.",
        f"{_RECORDS}::test_labels_with_separators_in_them_are_no_part_of_what_a_call_means",
    ),
    "7.13": ("Another label or phase hits; another model, schema, agent or bound of steps runs.", _NO_PART, _PART),
    "7.15": (
        "Prompts that only look alike are two calls.",
        f"{_CALLS}::test_texts_that_look_alike_are_two_calls",
    ),
    "7.17": (
        "What nobody asks for any more is counted and changes nothing.",
        f"{_ENTRIES}::test_answers_that_nothing_asked_for_are_told",
        f"{_CALLS}::test_a_call_that_is_gone_is_reported_and_the_others_are_not_touched",
    ),
    "7.18": (
        "A nested workflow asks for itself, and each replays.",
        f"{_CALLS}::test_a_nested_workflow_asks_for_itself",
    ),
    "7.19": ("A hundred items keep their order, and exactly as many run as may.", _CAP),
    "7.21": (
        "A branch that raises at once costs its sibling nothing, and the run is not `completed`.",
        f"{_FAN_OUT}::test_a_branch_that_raises_costs_no_sibling",
    ),
    "7.22": (
        "Where a failure is to be raised the siblings end first and are recorded.",
        f"{_FAN_OUT}::test_on_request_the_first_failure_in_input_order_is_raised_once_all_have_ended",
    ),
    "7.23": (
        "A run of which all agents, or all branches, fail has failed, with its counts.",
        _VERDICT,
        f"{_FAN_OUT}::test_a_fleet_in_which_all_fail_has_failed",
        f"{_EVENTS}::test_of_very_many_failures_some_are_told_and_all_are_counted",
    ),
    "7.24": (
        "4096 items are taken and 4097 refused before one starts; generators, none and one are fine.",
        f"{_FAN_OUT}::test_a_call_takes_4096_items_and_refuses_4097_before_anything_starts",
        f"{_FAN_OUT}::test_generators_empty_lists_and_single_items_are_fine",
        f"{_SANDBOX}::test_4096_items_are_taken_and_4097_are_refused_before_anything_starts",
    ),
    "7.26": (
        "Ten lanes have a phase each, and each title is told once.",
        f"{_FAN_OUT}::test_each_lane_has_its_own_phase_and_each_title_is_told_once",
    ),
    "7.27": (
        "Agent 1001 is an error and no None; a thousand replays and five more are fine.",
        f"{_LIMITS}::test_agent_1001_is_refused_and_answers_from_the_journal_are_free",
    ),
    "7.28": ("Repairs under a full cap stay within it.", f"{_AGENTS}::test_repairs_stay_within_the_cap"),
    "7.29": (
        "Calls from another thread, or behind the end, are errors and change nothing.",
        f"{_FAN_OUT}::test_a_call_from_another_thread_is_refused",
        f"{_FAN_OUT}::test_what_a_script_left_running_can_call_nothing_after_its_end",
    ),
    "7.30": (
        "Killed at any byte, a run goes on and repeats nothing that was whole.",
        _ANY_BYTE,
        f"{_JOURNAL}::test_a_journal_that_was_cut_at_any_byte_has_all_that_was_whole_and_nothing_else",
        _KILLED,
    ),
    "7.32": (
        "A flipped bit is found and its call runs again.",
        _FLIPPED,
        f"{_JOURNAL}::test_a_flipped_bit_is_never_served",
        f"{_FILES}::test_a_damaged_blob_is_none_until_it_is_put_again",
    ),
    "7.33": (
        "A write that is refused fails the run, hands on no value, and the next resume is fine.",
        _REFUSED_WRITE,
        "tests/scenarios/test_kill_workflow.py::test_a_journal_that_finds_no_more_room_is_whole_and_can_be_gone_on_with",
    ),
    "7.35": ("Odd values are the same each time, or an error the first time.", _VALUES),
    "7.37": (
        "A dead owner is taken over from, and a living one with a slow disk is not.",
        f"{_RESUME}::test_a_run_that_is_active_is_refused_here_and_elsewhere",
        _DEATH,
        "tests/workflow/test_races.py::test_of_several_that_go_on_with_one_run_each_attempt_has_a_number_of_its_own",
        "tests/scenarios/test_kill_workflow.py::test_of_two_processes_that_go_on_with_one_run_one_has_it",
    ),
    "7.38": ("An id that is taken is never written over.", f"{_LAUNCH}::test_a_taken_run_id_is_never_overwritten"),
    "7.39": (
        "A refused resume leaves every file byte for byte.",
        f"{_RESUME}::test_arguments_that_differ_are_refused_with_their_names_and_may_be_forked",
        f"{_RESUME}::test_a_run_of_another_workflow_is_refused",
        f"{_RESUME}::test_a_journal_that_is_gone_is_never_taken_for_an_empty_one",
    ),
    "7.40": (
        "A journal that is gone is refused, an empty one has no hits, and that of another run is refused.",
        f"{_RESUME}::test_a_journal_that_is_gone_is_never_taken_for_an_empty_one",
    ),
    "7.41": (
        "Fifty thousand entries are read in bounded memory, and snapshots do not grow with them.",
        f"{_CRASHES}::test_a_journal_of_fifty_thousand_answers_is_gone_on_with",
        f"{_JOURNAL}::test_what_is_taken_live_is_not_kept_in_memory",
        f"{_ENTRIES}::test_many_equal_calls_are_claimed_and_rejected_in_linear_time",
    ),
    "7.42": (
        "A link in place of a folder, or an id that is a path, is refused.",
        f"{_FILES}::test_a_store_that_is_a_link_is_refused",
        f"{_FILES}::test_a_folder_of_the_store_that_is_a_link_is_refused",
        f"{_LAUNCH}::test_what_is_no_run_id_is_refused",
    ),
    "7.43": (
        "An edit in the middle of a fan-out costs that call and what follows from it.",
        f"{_RECORDS}::test_an_edit_in_the_middle_of_a_fan_out_costs_that_call_and_what_follows_from_it",
    ),
    "7.44": (
        "Other arguments are refused by name; a fork has an id of its own and leaves the old files alone.",
        f"{_RESUME}::test_arguments_that_differ_are_refused_with_their_names_and_may_be_forked",
    ),
    "7.47": (
        "An agent that was tried again is one call.",
        f"{_AGENTS}::test_a_call_that_is_tried_again_is_one_call",
        f"{_RESUME}::test_a_call_has_the_same_task_id_in_each_attempt_and_no_other_call_has_it",
    ),
    "7.48": (
        "After a stop the finished agents replay.",
        f"{_CONTROL}::test_a_run_that_is_ended_keeps_what_it_finished",
    ),
    "7.50": (
        "What one run keeps in its module is not there in the next one.",
        f"{_LAUNCH}::test_module_state_of_one_run_is_not_seen_by_the_next",
        f"{_SANDBOX}::test_two_runs_share_no_state",
    ),
    "7.52": (
        "An error runs again, a legitimate None and a skip replay.",
        f"{_CALLS}::test_a_legitimate_none_replays_and_an_error_runs_again",
        f"{_CONTROL}::test_one_agent_may_be_skipped_and_stays_skipped",
    ),
    "7.53": ("A budget that ends in a fan-out is passed by no more than the agents under way.", _SPENT),
    "7.55": (
        "Usage that no provider told is estimated, flagged, and counts for the budget.",
        f"{_MONEY}::test_usage_that_nobody_told_is_estimated_and_flagged",
        "tests/orchestration/test_resumable.py::test_usage_that_nobody_reported_is_estimated_and_marked",
    ),
    "7.56": (
        "Invalid answers are paid for though the call failed.",
        f"{_AGENTS}::test_answers_that_never_match_fail_with_all_that_they_cost_and_their_last_text",
    ),
    "7.58": (
        "What is throttled waits as long as it is told, siblings too, with jitter and a bound, and is no answer.",
        f"{_RETRY}::test_retry_after_is_waited_in_full",
        f"{_RETRY}::test_siblings_wait_too_after_one_was_throttled",
        f"{_RETRY}::test_no_request_leaves_before_the_moment_that_the_server_named",
        f"{_RETRY}::test_backoff_is_full_jitter_below_a_doubling_limit",
        f"{_RETRY}::test_attempts_are_bounded_and_the_last_error_says_how_many_there_were",
        f"{_MONEY}::test_a_server_that_is_down_pauses_the_run_instead_of_failing_every_agent",
    ),
    "7.59": (
        "Of fences, prose, several objects and broken ones the first whole match counts, and never a part of one.",
        f"{_SHAPES}::test_a_value_in_a_fence_is_found",
        f"{_SHAPES}::test_a_value_embedded_in_prose_is_found",
        f"{_SHAPES}::test_the_first_valid_object_wins",
        f"{_SHAPES}::test_a_truncated_answer_is_never_completed_nor_cut_to_a_fragment",
    ),
    "7.61": (
        "A repair is told the fault; the last failure has a code, and its text is kept.",
        f"{_AGENTS}::test_a_repaired_answer_is_flagged_and_its_repair_was_told_the_fault",
        f"{_AGENTS}::test_answers_that_never_match_fail_with_all_that_they_cost_and_their_last_text",
    ),
    "7.62": (
        "An answer that took repairs is flagged with their number.",
        f"{_AGENTS}::test_a_repaired_answer_is_flagged_and_its_repair_was_told_the_fault",
    ),
    "7.63": (
        "Stopped in a queue, an agent, a repair, an append or behind the last agent, a run is told once and can be "
        "gone on with.",
        _STOPPED,
        f"{_STOPS}::test_a_run_is_stopped_while_an_answer_is_repaired",
        f"{_STOPS}::test_a_stop_that_comes_behind_the_script_leaves_the_run_as_it_ended",
    ),
    "7.64": (
        "Who only waited and goes away stops nothing.",
        f"{_CONTROL}::test_a_caller_that_goes_away_does_not_end_the_run",
    ),
    "7.65": (
        "Agents that ignore their cancellation, block a thread or leave processes are left or killed, and marked.",
        f"{_STOPS}::test_an_agent_that_ignores_its_cancellation_is_left_behind_and_marked",
        f"{_STOPS}::test_a_tool_that_waits_for_a_thread_does_not_hold_up_the_stop",
        f"{_STOPS}::test_nothing_that_a_command_has_started_outlives_the_stop",
        f"{_STOPS}::test_a_tool_that_ignores_its_cancellation_keeps_no_place_of_the_session",
    ),
    "7.68": (
        "Whoever hears badly costs the run nothing: what is left out is counted, and the end never is.",
        f"{_EVENTS}::test_whatever_a_slow_disk_has_no_room_for_the_end_is_kept_and_how_much_was_left_out",
        f"{_CONTROL}::test_a_listener_that_raises_costs_the_run_nothing",
        "tests/session/test_stream_of_events.py::test_a_run_is_not_held_up_by_a_reader_that_never_reads",
    ),
    "7.69": (
        "A nested workflow that nests is an error where it tried, and may be caught.",
        f"{_FAN_OUT}::test_a_nested_workflow_cannot_nest_and_says_so_where_it_tried",
    ),
    "7.70": (
        "An agent starts before it ends, the output is there with the notification, and what was spent never falls.",
        f"{_CONTROL}::test_an_agent_starts_before_it_ends_and_the_output_is_there_with_the_notification",
        f"{_EVENTS}::test_what_a_run_has_spent_never_falls",
    ),
}

DECIDED: dict[str, Row] = {
    "4.1a": (
        "A project file runs as the text that was approved, and cannot vouch for itself.",
        f"{_LAUNCH}::test_a_project_file_is_run_only_as_it_was_approved",
        "tests/cli/test_workflow_commands.py::test_the_project_cannot_vouch_for_itself",
    ),
    "4.1b": (
        "An inline script runs in a process of its own without files, network, environment, clock or chance, under "
        "limits, and is type-checked before.",
        "tests/workflow/test_sandbox_hostile.py::test_there_is_no_way_out",
        "tests/workflow/test_sandbox_hostile.py::test_the_process_has_nothing_of_our_environment",
        "tests/workflow/test_sandbox_hostile.py::test_code_that_does_not_end_is_ended",
        "tests/workflow/test_sandbox_hostile.py::test_memory_that_grows_is_bounded",
        "tests/workflow/test_sandbox_hostile.py::test_calls_of_the_host_are_bounded",
        f"{_SANDBOX}::test_the_clock_stands_still_and_chance_is_that_of_the_seed",
        "tests/workflow/test_sandbox_check.py::test_each_fault_is_told_with_its_line",
    ),
    "4.1c": (
        "Both kinds of script have one API, ask the same at the same places, and answer each other's calls.",
        f"{_SANDBOX}::test_a_script_asks_the_same_at_the_same_places_here_and_in_the_sandbox",
        "tests/scenarios/test_seed_workflow.py::test_the_same_text_writes_the_same_journal_here_and_in_the_sandbox",
    ),
    "4.1d": (
        "The tool takes name, args and the run to go on with; a script only where the host allows it.",
        f"{_TOOL}::test_the_tool_lists_what_there_is_and_takes_a_script_only_where_the_host_allows_it",
        f"{_LAUNCH}::test_inline_scripts_are_off_unless_the_host_turns_them_on",
    ),
    "4.2": (
        "A failure is a None and a record, an exception on request; five statuses; counts in every notification.",
        f"{_FAN_OUT}::test_a_branch_that_raises_costs_no_sibling",
        f"{_FAN_OUT}::test_on_request_the_first_failure_in_input_order_is_raised_once_all_have_ended",
        f"{_EVENTS}::test_the_notification_tells_what_came_of_it_and_what_it_took",
        f"{_CONTROL}::test_a_run_that_is_ended_keeps_what_it_finished",
    ),
    "4.3": (
        "A run has its files under the workspace, by its id.",
        f"{_FILES}::test_each_file_of_a_run_has_the_name_that_people_are_told",
    ),
}

SEED: dict[str, Row] = {
    "tool": (
        "One call is answered at once, and one notification comes back to the conversation.",
        f"{_TOOL}::test_one_call_starts_a_team_and_its_end_is_told_once",
        f"{_TOOL}::test_what_an_agent_writes_cannot_forge_a_notification",
    ),
    "script": (
        "The script of the page runs as it stands, and a resume gives the same with no agent and no token.",
        "tests/scenarios/test_seed_workflow_snippet.py::test_it_runs_and_a_resume_asks_nobody",
        "tests/scenarios/test_seed_workflow.py"
        "::test_it_runs_as_shown_then_resumes_with_no_agent_and_no_token_to_the_same_bytes",
    ),
    "verbs": (
        "Agent, parallel, pipeline, phase, log and workflow are all there is, and do what the table says.",
        "tests/workflow/test_sandbox_check.py::test_the_types_tell_of_all_that_ctx_has",
        f"{_FAN_OUT}::test_items_go_through_their_stages_without_a_barrier",
        _CAP,
    ),
    "events": (
        "`async_launched`, `task_started`, progress of phases, agents and lines, one notification with output, tokens, "
        "tools and time.",
        "tests/scenarios/test_seed_workflow_snippet.py::test_it_runs_and_a_resume_asks_nobody",
        f"{_EVENTS}::test_the_notification_tells_what_came_of_it_and_what_it_took",
        f"{_CONTROL}::test_an_agent_starts_before_it_ends_and_the_output_is_there_with_the_notification",
    ),
    "schema": (
        "An answer with a schema is an object that matches it, and one that does not is repaired.",
        f"{_AGENTS}::test_a_repaired_answer_is_flagged_and_its_repair_was_told_the_fault",
    ),
    "determinism": (
        "Clock and chance of a script are the run's, and the order in which agents end is no key.",
        f"{_FAN_OUT}::test_chance_and_time_are_the_same_in_each_attempt_and_differ_by_place",
        f"{_SANDBOX}::test_the_clock_stands_still_and_chance_is_that_of_the_seed",
        f"{_CALLS}::test_equal_calls_at_once_keep_their_answers_whatever_order_they_end_in",
        "tests/cli/test_workflow_hazards.py::test_what_differs_from_run_to_run_is_a_warning_with_what_to_use_instead",
    ),
}

GROUPS = (DEFECTS, LAUNCH, SCRIPT, IDENTITY, JOURNAL, RESUME, MONEY, STOP, CASES, DECIDED, SEED)
ROWS: dict[str, Row] = {name: row for group in GROUPS for name, row in group.items()}
NUMBERED = (
    *(*range(1, 9), 11, 12, 13, 15, 17, 18, 19, 21, 22, 23, 24, 26, 27, 28, 29, 30, 32, 33, 35, 37, 38, 39, 40, 41, 42),
    *(43, 44, 47, 48, 50, 52, 53, 55, 56, 58, 59, 61, 62, 63, 64, 65, 68, 69, 70),
)


def test_every_row_is_there_once() -> None:
    assert sum(map(len, GROUPS)) == len(ROWS)
    assert list(DEFECTS) == [f"D{number}" for number in range(1, 21)]
    assert list(CASES) == [f"7.{number}" for number in NUMBERED]


@pytest.mark.parametrize("name", ROWS)
def test_the_tests_of_a_row_exist(name: str) -> None:
    check_row(ROWS[name])
